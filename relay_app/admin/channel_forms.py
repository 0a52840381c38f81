"""Forms of a channel and of its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from unfold.admin import TabularInline
from unfold.forms import BaseDialogForm, PaginationInlineFormSet
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from channels_app.models import Channel, ChannelKey, Status
from channels_app.services import secret_hash, secret_hint
from relay_app.admin.base import column
from relay_app.admin.fields import NOT_YET, HeadersField, MappingField, NamesField, checked
from relay_app.config_channel_fields import model_mapping, param_override, proxy, rate_limits
from relay_app.config_channels import with_suffix
from relay_app.config_fields import (
    base_url,
    json_mapping,
    model_name,
    secret,
    status_mapping,
    text,
    timeouts,
    without_password,
)
from relay_app.config_notes import in_no_group
from relay_app.providers.registry import ADAPTERS, settings_fault


def provider_choices() -> Iterator[tuple[str, str]]:
    """Yield the provider types, after an empty choice."""
    yield "", "Select the type"
    for name in ADAPTERS:
        yield name, name


class ChannelForm(forms.ModelForm[Channel]):
    """A channel, checked as a configuration file would be.

    `notices` says what was added to the address, and what is hardly meant.
    """

    provider = forms.ChoiceField(
        label="Type",
        choices=provider_choices,
        widget=UnfoldAdminSelectWidget(),
        help_text="The dialect that the upstream speaks.",
    )
    model_names = NamesField(
        one=model_name,
        label="Models",
        help_text="One name a line. A * at the end matches any ending: gpt-4o-*",
    )
    timeouts = MappingField(
        check=timeouts,
        help_text="Seconds for any of connect, first_byte, first_token, idle, response, total. "
        'What is missing takes the option, 0 is no limit: {"first_byte": 10}',
    )
    status_code_mapping = MappingField(
        check=status_mapping,
        help_text='Upstream statuses to treat as others (400-599): {"400": 500}',
    )
    model_mapping = MappingField(
        check=model_mapping,
        help_text="Names that the upstream has for models; a name may lead to another: "
        '{"gpt-4o": "gpt-4o-2024-11-20"}',
    )
    param_override = MappingField(
        check=param_override,
        label="Parameters to override",
        help_text='Set in every request: {"temperature": 0}; or with paths and conditions: '
        '{"operations": [{"path": "stream_options", "mode": "delete"}]}',
    )
    header_override = HeadersField(
        label="Headers to override",
        help_text="Sent upstream; values may hold {api_key} and {client_header:NAME}: "
        '{"X-Team": "relay"}. Values are not shown again: leave ••• to keep one.',
    )
    limits = MappingField(
        check=rate_limits,
        rows=2,
        label="Rate limits",
        help_text="What the account allows, any of rpm, tpm, concurrency (requests and tokens a "
        'minute, requests at once): {"rpm": 600}. A full channel is passed over.',
    )
    new_proxy = forms.CharField(
        label="Proxy",
        required=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "off"}),
        help_text="The upstream is reached through it: http://user:password@host:3128 or "
        "socks5://host:1080. Not shown again.",
    )
    is_proxy_removed = forms.BooleanField(
        label="Remove the proxy",
        required=False,
        widget=UnfoldBooleanSwitchWidget(),
        help_text="The upstream is then reached directly.",
    )
    supports_prefill = forms.TypedChoiceField(
        label="Goes on from a begun answer",
        required=False,
        choices=[("", "as the model's name says"), ("yes", "yes"), ("no", "no")],
        coerce=lambda word: word == "yes",
        empty_value=None,
        widget=UnfoldAdminSelectWidget(),
        help_text=f"{NOT_YET}: no answer is continued. Whether one that broke may be, here.",
    )
    settings = MappingField(
        check=json_mapping,
        help_text="What the type needs besides, as JSON. Type simulated reads behaviour: "
        '{"behaviour": "status-503-every-3"}',
    )

    class Meta:
        model = Channel
        # The page lists its fields.
        exclude = ("status_reason", "status_changed_at", "proxy")  # noqa: DJ006
        labels = {
            "base_url": "Base URL",
            "health_scope": "A fault concerns",
            "bill_upstream_model": "Bill the upstream's model",
        }
        help_texts = {
            "auto_ban": f"{NOT_YET}: nothing disables channels by itself. Whether the relay may, "
            "when the account fails.",
            "fault_domain": f"{NOT_YET}: nothing is parked. Channels of one name here will fail "
            "together.",
            "health_scope": f"{NOT_YET}: nothing is parked. What will be parked when it fails.",
            "test_model": f"{NOT_YET}: nothing tests channels by itself. The model to test with.",
            "bill_upstream_model": "Bill the name that the mapping gives, not the one asked for.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.notices: list[str] = []
        if "status" in self.fields:  # only the relay disables automatically
            by_hand = [(s.value, s.label) for s in (Status.ENABLED, Status.DISABLED)]
            self.fields["status"].choices = by_hand  # type: ignore[attr-defined]  # a choice field
        channel = self.instance
        words = {True: "yes", False: "no", None: ""}
        self.initial["supports_prefill"] = words[channel.supports_prefill]
        headers = self.fields.get("header_override")
        if isinstance(headers, HeadersField):
            headers.present = channel.header_override or {}
        if "new_proxy" in self.fields:
            held = "one is set; leave empty to keep it" if channel.proxy else "none is set"
            self.fields["new_proxy"].widget.attrs["placeholder"] = held

    def clean_name(self) -> str:
        """Refuse what a configuration file could not name."""
        name: str = checked(text(100), self.cleaned_data["name"])
        return name

    def clean_base_url(self) -> str:
        """Check the address as the relay will read it."""
        url: str = checked(base_url, self.cleaned_data["base_url"])
        return url

    def clean_fault_domain(self) -> str:
        """Refuse what a configuration file could not name."""
        return str(checked(text(100, may_be_empty=True), self.cleaned_data["fault_domain"]))

    def clean_new_proxy(self) -> str:
        """Check the address of the proxy, which is not repeated."""
        return str(checked(proxy, self.cleaned_data["new_proxy"]))

    def save(self, commit: bool = True) -> Channel:
        """Save the channel, with the proxy that was typed, if any."""
        if self.cleaned_data.get("new_proxy") or self.cleaned_data.get("is_proxy_removed"):
            self.instance.proxy = self.cleaned_data["new_proxy"]
        channel: Channel = super().save(commit)
        return channel

    def clean(self) -> dict[str, Any]:
        """Complete the address with the ending that the type expects."""
        data: dict[str, Any] = super().clean() or {}
        if data.get("new_proxy") and data.get("is_proxy_removed"):
            self.add_error("new_proxy", "Type a new proxy, or remove the one that is set.")
        fault = settings_fault(data.get("provider", ""), data.get("settings"))
        if fault is not None:
            self.add_error("settings", fault)
        if "groups" in data and not data["groups"] and data.get("name"):
            self.notices.append(f"Channel {in_no_group(data['name'])}.")
        adapter, url = ADAPTERS.get(data.get("provider", "")), data.get("base_url")
        if adapter is None or url is None:
            return data
        if adapter.needs_base_url and not url:
            self.add_error("base_url", f"Type {data['provider']} wants an address.")
        full = with_suffix(url, adapter.base_url_suffix)
        if full != url:
            data["base_url"] = full
            shown = without_password(full)
            self.notices.append(f"{adapter.base_url_suffix} was added to the address: {shown}")
        return data


class ChannelKeyForm(forms.ModelForm[ChannelKey]):
    """A key is typed once and never shown again: the field is always empty."""

    new_value = forms.CharField(
        label="Key",
        required=False,
        strip=True,
        widget=UnfoldAdminPasswordWidget(
            attrs={"autocomplete": "off", "placeholder": "leave empty to keep"}
        ),
    )

    limits = MappingField(check=rate_limits, rows=1, label="Rate limits")

    class Meta:
        model = ChannelKey
        fields = ("status", "limits")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kept = {Status.ENABLED.value, Status.DISABLED.value, self.instance.status}
        if "status" in self.fields:
            choices = [(s.value, s.label) for s in Status if s.value in kept]
            self.fields["status"].choices = choices  # type: ignore[attr-defined]  # a choice field
        if "limits" in self.fields:
            self.fields["limits"].widget.attrs["placeholder"] = '{"rpm": 60}'
        if "new_value" in self.fields and not self.instance.pk:
            self.fields["new_value"].widget.attrs["placeholder"] = "shown never again"

    def clean_new_value(self) -> str:
        """Check the key, and demand one for a new row."""
        value: str = self.cleaned_data.get("new_value") or ""
        if not value and not self.instance.pk:
            raise ValidationError("Type the key.")
        return checked(secret, value) if value else ""

    def save(self, commit: bool = True) -> ChannelKey:
        """Save the key with its hash and hint."""
        value = self.cleaned_data.get("new_value")
        if value:
            self.instance.value = value
            self.instance.value_hash = secret_hash(value)
            self.instance.hint = secret_hint(value)
        if "status" in self.changed_data:
            self.instance.status_reason = ""
        key: ChannelKey = super().save(commit)
        return key


class ChannelKeyFormSet(PaginationInlineFormSet):  # type: ignore[misc]  # unfold is untyped
    """The keys of one channel: each may be there once."""

    def clean(self) -> None:
        """Refuse a key that the channel has already."""
        super().clean()
        seen: set[str] = set()
        for form in self.forms:
            if self.can_delete and self._should_delete_form(form):
                continue
            value = getattr(form, "cleaned_data", {}).get("new_value")
            found = secret_hash(value) if value else form.instance.value_hash
            if found and found in seen:
                form.add_error("new_value", "The channel has this key already.")
            seen.add(found)


class ChannelKeyInline(TabularInline):  # type: ignore[misc]  # unfold is untyped
    """The keys of a channel, masked."""

    model = ChannelKey
    form = ChannelKeyForm
    formset = ChannelKeyFormSet
    extra = 0
    hide_title = True
    verbose_name = "key"
    fields = ("masked", "new_value", "status", "limits", "status_reason")
    readonly_fields = ("masked", "status_reason")

    @column("Key (masked)")
    def masked(self, key: ChannelKey) -> str:
        """Return all that is shown of a key."""
        return key.hint or "new"

    def get_fields(self, request: Any, obj: Channel | None = None) -> tuple[str, ...]:
        """Leave out the empty field where nothing can be typed."""
        if self.has_change_permission(request, obj):
            return self.fields
        return tuple(name for name in self.fields if name != "new_value")

    def get_queryset(self, request: Any) -> Any:
        """Return the keys without their values: the page has no use for them."""
        return super().get_queryset(request).defer("value")


class DisableForm(BaseDialogForm):  # type: ignore[misc]  # unfold is untyped
    """Asks why a channel is disabled."""

    reason = forms.CharField(
        label="Reason",
        required=False,
        max_length=120,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "shown beside the status"}),
    )
