"""Admin pages of groups, channels with their keys, and options."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline

from channels_app.models import Channel, ChannelKey, Group, Option
from channels_app.services import secret_hash, secret_hint


@admin.register(Group)
class GroupAdmin(ModelAdmin):
    """Groups of channels."""

    list_display = ("name", "ratio")
    search_fields = ("name",)


class ChannelKeyForm(forms.ModelForm):  # type: ignore[type-arg]  # generic only in stubs
    """A key is typed once and never shown again: the field is always empty."""

    new_value = forms.CharField(
        label="Key",
        required=False,
        strip=True,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text="Stored encrypted; leave empty to keep the present one.",
    )

    class Meta:
        model = ChannelKey
        fields = ("status",)

    def clean(self) -> dict[str, Any]:
        """Demand a value for a new key."""
        data: dict[str, Any] = super().clean() or {}
        if not self.instance.pk and not data.get("new_value"):
            self.add_error("new_value", "Type the key.")
        return data

    def save(self, commit: bool = True) -> ChannelKey:
        """Save the key with its hash and hint."""
        value = self.cleaned_data.get("new_value")
        if value:
            self.instance.value = value
            self.instance.value_hash = secret_hash(value)
            self.instance.hint = secret_hint(value)
        key: ChannelKey = super().save(commit)
        return key


class ChannelKeyInline(TabularInline):
    """The keys of a channel, masked."""

    model = ChannelKey
    form = ChannelKeyForm
    extra = 0
    fields = ("hint", "new_value", "status", "status_reason")
    readonly_fields = ("hint", "status_reason")


@admin.register(Channel)
class ChannelAdmin(ModelAdmin):
    """Every setting of a channel on one page."""

    list_display = ("name", "provider", "status", "priority", "weight")
    list_filter = ("status", "provider", "groups")
    search_fields = ("name", "base_url")
    filter_horizontal = ("groups",)
    readonly_fields = ("status_reason", "status_changed_at", "created_at")
    inlines = (ChannelKeyInline,)


@admin.register(Option)
class OptionAdmin(ModelAdmin):
    """Options that differ from their defaults."""

    list_display = ("name", "value", "updated_at")
    search_fields = ("name",)

    def get_readonly_fields(
        self, request: HttpRequest, obj: Option | None = None
    ) -> tuple[str, ...]:
        """Keep the name of an option that exists."""
        return ("name",) if obj else ()
