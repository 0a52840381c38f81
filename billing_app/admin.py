"""Admin pages of users and tokens."""

from __future__ import annotations

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from billing_app.models import Token, User
from billing_app.services import key_hash, key_hint, new_key


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]  # generic only in stubs
    """Accounts: operators and owners of tokens."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "group", "is_staff", "is_active")
    fieldsets = (*(DjangoUserAdmin.fieldsets or ()), ("Relay", {"fields": ("group",)}))


@admin.register(Token)
class TokenAdmin(ModelAdmin):
    """Tokens of clients. The key is shown once, in a message after it was made."""

    list_display = ("name", "user", "hint", "group", "is_enabled", "expires_at")
    list_filter = ("is_enabled", "group")
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "hint")
    autocomplete_fields = ("user",)
    readonly_fields = ("hint", "created_at")

    def save_model(
        self, request: HttpRequest, obj: Token, form: forms.ModelForm[Token], change: bool
    ) -> None:
        """Give a new token its key, and show it this once."""
        if not change:
            key = new_key()
            obj.key_hash, obj.hint = key_hash(key), key_hint(key)
        super().save_model(request, obj, form, change)
        if not change:
            message = f"The token's key, shown only now: {key}"
            self.message_user(request, message, messages.WARNING)
