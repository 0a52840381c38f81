"""Filters that several lists use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_time
from unfold.contrib.filters.admin import DropdownFilter, RangeDateTimeFilter

from channels_app.models import Group
from relay_app.routes import AUTO


class GroupNameFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Rows that name one group."""

    title = "group"
    parameter_name = "group"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the groups."""
        names = [*Group.objects.values_list("name", flat=True), AUTO]
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the chosen group."""
        return queryset.filter(group=self.value()) if self.value() else queryset


class MomentFilter(RangeDateTimeFilter):  # type: ignore[misc]  # unfold is untyped
    """Rows between two moments of the admin's time zone; a day without a time counts whole.

    Unfold's own filter asks the database for times without a zone, and for nothing at all
    where the time is left out.
    """

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows within the chosen moments; one that can't be read counts for nothing."""
        name = self.parameter_name
        for end, lookup, missing in (("from", "gte", time.min), ("to", "lte", time.max)):
            day = _parsed(parse_date, self.used_parameters.get(f"{name}_{end}_0"))
            clock = _parsed(parse_time, self.used_parameters.get(f"{name}_{end}_1"))
            if day is not None:
                moment = timezone.make_aware(datetime.combine(day, clock or missing))
                queryset = queryset.filter(**{f"{name}__{lookup}": moment})
        return queryset


def _parsed(parse: Callable[[str], Any], text: str | None) -> Any:
    try:
        return parse((text or "").strip())
    except ValueError:  # well formed, but no such day or time
        return None
