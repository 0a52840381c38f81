"""Pages of groups."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from billing_app.models import Token, User
from channels_app.models import Channel, Group
from relay_app.admin.base import HistoryAdmin, column, link, list_of_rows


@admin.register(Group)
class GroupAdmin(HistoryAdmin):
    """Groups of channels, with who uses them."""

    list_display = ("name", "ratio", "channel_count", "user_count", "token_count")
    search_fields = ("name",)
    fields = ("name", "ratio")

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
