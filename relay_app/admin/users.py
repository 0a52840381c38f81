"""Pages of accounts and of the roles that give them permissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoRoleAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group as Role
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)
from unfold.contrib.filters.admin import BooleanRadioFilter
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from billing_app.models import BillingSession, LedgerEntry, Token, User, Wallet
from relay_app.admin.base import (
    HistoryAdmin,
    PlainAdmin,
    column,
    link,
    list_of_rows,
    moment_column,
    page_of,
    usd_text,
)
from relay_app.admin.deletion import PlainDeletion
from relay_app.admin.fields import GroupNameField
from relay_app.admin.filters import GroupNameFilter

GROUP_HELP = "Group of channels for tokens that name none."
LOGIN_HELP = "For the admin. Leave both empty for somebody who only uses tokens."

# What Celery Beat runs is written in the settings; rows edited here would be overwritten.
for _schedule in (
    PeriodicTask,
    IntervalSchedule,
    CrontabSchedule,
    SolarSchedule,
    ClockedSchedule,
):
    admin.site.unregister(_schedule)
admin.site.unregister(Role)

# Django calls roles groups, a word taken here. Migrations go by what the class itself says, so
# that these words are seen by people alone.
Role._meta.verbose_name = "role"  # noqa: SLF001 - public API
Role._meta.verbose_name_plural = "roles"  # noqa: SLF001 - public API
User._meta.get_field("groups").verbose_name = "roles"  # noqa: SLF001 - public API


class AccountForm(UserChangeForm):  # type: ignore[misc]  # unfold is untyped
    """An account; its group must exist."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "group" in self.fields:
            self.fields["group"] = GroupNameField(present=self.instance.group, help_text=GROUP_HELP)
        if "groups" in self.fields:  # Django's word for roles, which means another thing here
            self.fields["groups"].label = "Roles"
            self.fields["groups"].help_text = "Each gives the permissions that it is made of."


class NewAccountForm(UserCreationForm):  # type: ignore[misc]  # unfold is untyped
    """A new account with its group; without a password nobody can sign in with it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "group" in self.fields:
            self.fields["group"] = GroupNameField(
                present=self.instance.group, initial=self.instance.group, help_text=GROUP_HELP
            )
        password = self.fields["password1"]
        password.help_text = format_html("{}{}", LOGIN_HELP, password.help_text)

    def clean(self) -> Any:
        """Take an account without a password for one that only owns tokens."""
        if not any(self.data.get(name) for name in ("password1", "password2")):
            self.cleaned_data |= {"usable_password": "false"}
        return super().clean()


@admin.register(User)
class UserAdmin(PlainDeletion, HistoryAdmin, DjangoUserAdmin):  # type: ignore[type-arg]  # generic in stubs only
    """Accounts: operators of the admin and owners of tokens."""

    form = AccountForm
    add_form = NewAccountForm
    change_password_form = AdminPasswordChangeForm
    change_user_password_template = "relay_app/admin/change_password.html"  # noqa: S105 - a template
    list_display = (
        "username",
        "group",
        "wallet_link",
        "is_staff",
        "is_active",
        "token_count",
        "seen",
    )
    list_select_related = ("wallet",)
    list_filter: ClassVar[Any] = (
        GroupNameFilter,
        ("is_staff", BooleanRadioFilter),
        ("is_active", BooleanRadioFilter),
    )
    search_fields = ("username", "email")
    readonly_fields = ("wallet_link", "tokens_link", "seen", "joined")
    autocomplete_fields = ("groups",)
    filter_horizontal = ()
    add_fieldsets = (
        (
            None,
            {
                "fields": (
                    "username",
                    "group",
                    "password1",
                    "password2",
                    "is_staff",
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Return users with the number of their tokens."""
        queryset: QuerySet[User] = super().get_queryset(request)
        return queryset.annotate(tokens_owned=Count("tokens"))

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Return the page's parts; the line on the password only for those who may set it."""
        if obj is None:
            return self.add_fieldsets
        may_edit = self.has_change_permission(request, obj)
        rights = ("is_active", "is_staff", "is_superuser", "groups")
        return (
            (None, {"fields": ("username", "password") if may_edit else ("username",)}),
            ("Relay", {"fields": ("group", "wallet_link", "tokens_link")}),
            ("Person", {"fields": ("first_name", "last_name", "email")}),
            ("Rights in the admin", {"fields": rights}),
            ("Dates", {"fields": ("seen", "joined")}),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Keep who may give rights to themselves and others: superusers only."""
        if request.user.is_superuser:
            return self.readonly_fields
        return (*self.readonly_fields, "is_superuser", "groups")

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Return whether the account may be changed, which includes its password."""
        return _may_touch(request, obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Return whether the account may be deleted."""
        return _may_touch(request, obj) and super().has_delete_permission(request, obj)

    def is_on_the_books(self, rows: Sequence[User]) -> bool:
        """Return whether one of the accounts has paid, was paid for, or paid in for others."""
        ids = [user.pk for user in rows]
        entries = LedgerEntry.objects.filter(Q(wallet__in=ids) | Q(actor__in=ids))
        return entries.exists() or BillingSession.objects.filter(wallet__in=ids).exists()

    seen = moment_column("last_login", "Last login")
    joined = moment_column("date_joined", "Joined")

    @column("Tokens", ordering="tokens_owned")
    def token_count(self, user: Any) -> SafeString:
        """Return the number of tokens, as a link to them."""
        return link(list_of_rows(Token, f"user__id__exact={user.pk}"), user.tokens_owned)

    @column("Tokens")
    def tokens_link(self, user: Any) -> SafeString:
        """Return the same for the user's own page."""
        return self.token_count(user)

    @column("Wallet", ordering="wallet__available_nusd")
    def wallet_link(self, user: User) -> SafeString:
        """Return what the account has, as a link to its wallet."""
        return link(page_of(Wallet, user.pk), usd_text(user.wallet.available_nusd))


def _may_touch(request: HttpRequest, account: User | None) -> bool:
    """Return False for a superuser's account in the hands of somebody who is none."""
    return account is None or not account.is_superuser or bool(request.user.is_superuser)


@admin.register(Role)
class RoleAdmin(PlainDeletion, PlainAdmin, DjangoRoleAdmin):
    """Roles: named sets of permissions."""
