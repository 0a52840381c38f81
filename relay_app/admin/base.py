"""What the admin's pages have in common: history, columns, links, actions.

Unfold and simple_history ship no types; what is used of them passes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, TypeVar, cast

from django.contrib.admin import ShowFacets
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.db.models import DecimalField, Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from simple_history.admin import SimpleHistoryAdmin
from simple_history.template_utils import HistoricalRecordContextHelper
from unfold.admin import ModelAdmin
from unfold.decorators import action, display

from billing_app.core.money import show_usd
from relay_app.admin.fields import NumberInput, PlainDecimalField

F = TypeVar("F", bound=Callable[..., Any])
SECRET_FIELDS = {"key_hash", "value", "value_hash", "password"}
MAX_SEARCH_WORDS = 20
EMPTY = "–"  # noqa: RUF001 - a dash stands for nothing


class PlainAdmin(ModelAdmin):  # type: ignore[misc]  # unfold is untyped
    """An unfold page with the project's ways of showing a list."""

    list_per_page = 50
    list_filter_submit = True
    # Counts beside each choice of a filter cost a scan of the table for each.
    show_facets = ShowFacets.NEVER
    empty_value_display = EMPTY
    formfield_overrides: ClassVar[Any] = {
        DecimalField: {"form_class": PlainDecimalField, "widget": NumberInput}
    }
    # Unfold's pages with names as they are in the header, and plain words for no rows.
    change_list_template: Any = "relay_app/admin/change_list.html"
    change_form_template: Any = "relay_app/admin/change_form.html"
    delete_confirmation_template: Any = "relay_app/admin/delete_confirmation.html"
    delete_selected_confirmation_template: Any = "relay_app/admin/delete_selected.html"
    object_history_template: Any = "relay_app/admin/object_history.html"

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Refuse filters by what is shown nowhere: letter by letter they would tell it."""
        if SECRET_FIELDS.intersection(lookup.split("__")):
            return False
        return bool(super().lookup_allowed(lookup, value, request))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search for the first words only: databases refuse a query of thousands."""
        term = " ".join(search_term.split()[:MAX_SEARCH_WORDS])
        found: tuple[QuerySet[Any], bool] = super().get_search_results(request, queryset, term)
        return found


class PlainChanges(HistoricalRecordContextHelper):  # type: ignore[misc]  # untyped
    """Says changes as people write the values, not as Python does."""

    def prepare_delta_change_value(self, change: Any, value: Any) -> str:
        """Return the value in words."""
        return in_words(super().prepare_delta_change_value(change, value))


class HistoryAdmin(SimpleHistoryAdmin, PlainAdmin):  # type: ignore[misc]  # untyped
    """A page whose rows keep a history, to be read only.

    Versions can't be brought back: that would write rows past the services, and a version
    lacks what is secret.
    """

    object_history_template: Any = "relay_app/admin/history.html"
    object_history_list_template = "relay_app/admin/history_list.html"

    def revert_disabled(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return True: history is for reading."""
        return True

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Show the changes of a row, also of one that is gone; 404 for what is no id."""
        try:
            self.model._meta.pk.to_python(unquote(object_id))  # noqa: SLF001 - public API
        except ValidationError:
            raise Http404 from None
        shown: HttpResponse = super().history_view(request, object_id, extra_context)
        return shown

    def get_historical_record_context_helper(
        self, request: HttpRequest, historical_record: Any
    ) -> PlainChanges:
        """Return what writes the changes of a record."""
        return PlainChanges(self.model, historical_record)

    def history_form_view(
        self, request: HttpRequest, object_id: str, version_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Lead to the list of changes, which says all that a version's page would."""
        return HttpResponseRedirect(page_of(self.model, object_id, "history"))


class ReadOnly:
    """No adding, no changing: the rows say what happened."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False


def column(
    description: str,
    *,
    ordering: Any = None,
    label: Mapping[str, str] | bool | None = None,
    boolean: bool | None = None,
) -> Callable[[F], F]:
    """Return a decorator for a column; `label` maps its values to colours of a badge."""

    def decorate(function: F) -> F:
        shown: F = display(
            function, description=description, ordering=ordering, label=label, boolean=boolean
        )
        return shown

    return decorate


def moment_text(moment: datetime | None) -> str:
    """Return a time to the second in the admin's zone, as all its pages show times."""
    return f"{timezone.localtime(moment):%Y-%m-%d %H:%M:%S}" if moment else EMPTY


def in_words(value: Any) -> str:
    """Return a stored value as people write it: `rpm: 5`, `a, b`, yes, none."""
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return moment_text(value)
    if isinstance(value, dict):
        inner = ((name, in_words(one)) for name, one in sorted(value.items()))
        return ", ".join(f"{name}: {one}" for name, one in inner)
    if isinstance(value, list):
        return ", ".join(
            f"({in_words(one)})" if isinstance(one, dict) else in_words(one) for one in value
        )
    return str(value)


def counted(count: int, noun: str) -> str:
    """Return a number of things, such as `1 code` or `2 codes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def moment_column(field: str, description: str) -> Callable[[Any, Any], str]:
    """Return a column that shows a row's field with `moment_text`."""

    @column(description, ordering=field)
    def shown(_page: Any, row: Any) -> str:
        """Return the time of the row."""
        return moment_text(getattr(row, field))

    return shown


def usd_text(amount_nusd: int | None, *, is_signed: bool = False) -> str:
    """Return nano-dollars as USD, coloured if negative; `is_signed`: positive ones have a sign."""
    if amount_nusd is None:
        return EMPTY
    text = show_usd(amount_nusd)
    if amount_nusd < 0:
        return format_html('<span class="relay-minus">{}</span>', text)
    if is_signed and amount_nusd:
        return format_html('<span class="relay-plus">+{}</span>', text)
    return text


def usd_column(field: str, description: str, *, is_signed: bool = False) -> Any:
    """Return a column that shows nano-dollars with `usd_text`."""

    @column(description, ordering=field)
    def shown(_page: Any, row: Any) -> str:
        """Return the amount of the row."""
        return usd_text(getattr(row, field), is_signed=is_signed)

    return shown


def list_action(description: str, *, permissions: Iterable[str]) -> Callable[[F], F]:
    """Return a decorator for an action on the rows that are ticked in a list."""

    def decorate(function: F) -> F:
        done: F = action(description=description, permissions=list(permissions))(function)
        return done

    return decorate


def list_button(description: str, *, icon: str, permissions: Iterable[str]) -> Callable[[F], F]:
    """Return a decorator for a button of a list that leads to a page of its own."""

    def decorate(function: F) -> F:
        done: F = action(description=description, icon=icon, permissions=list(permissions))(
            function
        )
        return done

    return decorate


def log_rows(request: HttpRequest, rows: Iterable[Model], *, flag: int, words: str) -> None:
    """Write what was done to the rows into their histories, with who did it."""
    user_id = cast("int", request.user.pk)
    LogEntry.objects.log_actions(user_id, list(rows), flag, words)


def button(
    description: str,
    *,
    icon: str,
    permissions: Iterable[str],
    question: str,
    form_class: type[Any] | None = None,
) -> Callable[[F], F]:
    """Return a decorator for a button of one row that asks before it acts.

    The dialog also makes it a POST with a CSRF token; unfold's plain buttons are links.
    """

    def decorate(function: F) -> F:
        dialog = {
            "title": description,
            "description": question,
            "form_class": form_class,
            "form_submit_text": description,
        }
        done: F = action(
            description=description, icon=icon, permissions=list(permissions), dialog=dialog
        )(function)
        return done

    return decorate


def go_to(request: HttpRequest, url: str) -> HttpResponse:
    """Return the answer of a dialog that leads on to `url`."""
    if request.headers.get("HX-Request"):  # htmx follows redirects itself, into the dialog
        return HttpResponse(headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


def page_of(model: type[Model], pk: object, page: str = "change") -> str:
    """Return the address of a row's page."""
    return reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_{page}", args=(pk,))  # noqa: SLF001 - public API


def list_of_rows(model: type[Model], query: str = "") -> str:
    """Return the address of a list, with a query string such as `group=default`."""
    url = reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_changelist")  # noqa: SLF001 - public API
    return f"{url}?{query}" if query else url


def link(url: str, text: object) -> SafeString:
    """Return a link in the admin's colours."""
    return format_html('<a class="relay-link" href="{}">{}</a>', url, text)


def links(pairs: Iterable[tuple[str, object]]) -> SafeString | str:
    """Return links with commas between them, or the sign for nothing."""
    return format_html_join(", ", "{}", ((link(url, text),) for url, text in pairs)) or EMPTY
