"""Pages of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from billing_app.models import Token, User
from channels_app.models import Channel, Group
from relay_app.admin.base import HistoryAdmin, column, link, list_of_rows
from relay_app.admin.deletion import PlainDeletion, namers_of_groups
from relay_app.admin.fields import NamesField, checked
from relay_app.config_fields import text
from relay_app.config_notes import unknown_user_groups
from relay_app.references import Namer
from relay_app.routes import AUTO


class GroupForm(forms.ModelForm[Group]):
    """A group, checked as in a configuration file."""

    user_groups = NamesField(
        one=text(100),
        rows=3,
        label="Open to",
        help_text="Groups of users whose tokens may use it, one a line. Empty: everybody.",
    )

    class Meta:
        model = Group
        fields = ("name", "ratio", "user_groups")
        help_texts = {
            "ratio": "What requests of the group cost, as a multiple of the price.",
        }

    def clean_name(self) -> str:
        """Refuse what a configuration file could not name, and the word for several groups."""
        name = str(checked(text(100), self.cleaned_data["name"]))
        if name == AUTO:
            raise ValidationError(f"{AUTO} stands for all groups of option AutoGroups.")
        return name


@admin.register(Group)
class GroupAdmin(PlainDeletion, HistoryAdmin):
    """Groups of channels, with who uses them."""

    form = GroupForm
    list_display = ("name", "ratio", "open_to", "channel_count", "user_count", "token_count")
    search_fields = ("name",)
    fields = ("name", "ratio", "user_groups")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        """Return groups with the counts of their columns."""
        queryset: QuerySet[Group] = super().get_queryset(request)
        return queryset.annotate(
            channels_in_it=Count("channels"),
            users_of_it=_count(User.objects.filter(group=OuterRef("name"))),
            tokens_of_it=_count(Token.objects.filter(group=OuterRef("name"))),
        )

    def get_readonly_fields(
        self, request: HttpRequest, obj: Group | None = None
    ) -> tuple[str, ...]:
        """Keep the name of a group: tokens and users refer to it."""
        return ("name",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Group, form: Any, change: bool) -> None:
        """Save the group, and point out groups of users that nobody can be in."""
        super().save_model(request, obj, form, change)
        known = list(Group.objects.values_list("name", flat=True))
        for note in unknown_user_groups(obj.user_groups, groups=known):
            self.message_user(request, f"Open to: {note}", messages.WARNING)

    def blockers(self, rows: Sequence[Group]) -> list[Namer]:
        """Return who names the groups: without them they would have no channel to use."""
        return namers_of_groups(rows)

    @column("Open to")
    def open_to(self, group: Group) -> str:
        """Return the groups of users that may use the group."""
        return ", ".join(map(str, group.user_groups or ())) or "everybody"

    @column("Channels", ordering="channels_in_it")
    def channel_count(self, group: Any) -> SafeString:
        """Return the number of channels, as a link to them."""
        return link(list_of_rows(Channel, f"groups__id__exact={group.pk}"), group.channels_in_it)

    @column("Users", ordering="users_of_it")
    def user_count(self, group: Any) -> SafeString:
        """Return the number of users whose group it is, as a link to them."""
        return link(list_of_rows(User, urlencode({"group": group.name})), group.users_of_it)

    @column("Tokens", ordering="tokens_of_it")
    def token_count(self, group: Any) -> SafeString:
        """Return the number of tokens that name the group, as a link to them."""
        return link(list_of_rows(Token, urlencode({"group": group.name})), group.tokens_of_it)


def _count(rows: QuerySet[Any]) -> Coalesce:
    """Return the count of rows that name the group."""
    count = rows.order_by().values("group").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(count, output_field=IntegerField()), 0)
