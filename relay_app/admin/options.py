"""The options on one page: each a typed field with its help, unit, bounds and default."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.forms import BoundField
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from unfold.widgets import UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from channels_app.models import Option
from channels_app.options import OPTIONS, OptionError, OptionSpec
from channels_app.services import options_set
from relay_app.admin.base import HistoryAdmin, list_of_rows, page_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionLine:
    """One option as the page shows it."""

    spec: OptionSpec
    field: BoundField
    default: str
    bounds: str
    is_default: bool
    history_url: str


class OptionField(forms.Field):
    """A value that the options table accepts; its errors are the table's own."""

    def __init__(self, spec: OptionSpec) -> None:
        self.spec = spec
        super().__init__(required=False, widget=_widget(spec), label=title(spec.name))

    def clean(self, value: Any) -> Any:
        """Return the value as it is stored."""
        if self.spec.kind != "ranges" and value in (None, ""):
            raise ValidationError(f"Type a value; the default is {shown(self.spec.default)}.")
        try:
            return self.spec.stored(value)
        except OptionError as error:
            raise ValidationError(str(error).removeprefix(f"{self.spec.name}: ")) from None


class OptionsForm(forms.Form):
    """All options, each with the value in force."""

    def __init__(self, *, stored: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.in_force = {name: _in_force(spec, stored) for name, spec in OPTIONS.items()}
        for name, spec in OPTIONS.items():
            self.fields[name] = OptionField(spec)
            value = self.in_force[name]
            self.initial[name] = value if spec.kind == "bool" else shown(value)

    def changes(self) -> dict[str, Any]:
        """Return the values that differ from those in force."""
        return {
            name: value for name, value in self.cleaned_data.items() if value != self.in_force[name]
        }


@admin.register(Option)
class OptionAdmin(HistoryAdmin):
    """Options. There is one page for all; rows are an affair of the database."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: every option is there already."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Option | None = None) -> bool:
        """Return False: an option is set back, not deleted."""
        return False

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Lead to the page of all options."""
        return HttpResponseRedirect(list_of_rows(Option))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show all options as one form, and store what changed: all of it or nothing."""
        may_edit = self.has_change_permission(request)
        if not (may_edit or self.has_view_permission(request)):
            raise PermissionDenied
        rows = {row.name: row for row in Option.objects.all()}
        stored = {name: row.value for name, row in rows.items()}
        form = OptionsForm(stored=stored, data=request.POST or None)
        if request.method == "POST":
            if not may_edit:
                raise PermissionDenied
            if form.is_valid():
                changed = options_set(values=form.changes())
                text = f"Changed: {', '.join(changed)}" if changed else "Nothing was changed."
                self.message_user(request, text, messages.SUCCESS)
                return HttpResponseRedirect(list_of_rows(Option))
        context = {
            **self.admin_site.each_context(request),
            "title": "Options",
            "opts": self.opts,
            "form": form,
            "lines": list(_lines(form, rows)),
            "may_edit": may_edit,
        }
        return TemplateResponse(request, "relay_app/admin/options.html", context)


def title(name: str) -> str:
    """Return an option's name in words: `RetryTimes` → `Retry times`."""
    return re.sub(r"(?<!^)([A-Z])", lambda match: f" {match[1].lower()}", name)


def shown(value: object) -> str:
    """Return a value as people write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _in_force(spec: OptionSpec, stored: dict[str, Any]) -> Any:
    """Return the value that the relay goes by: a stored one that is refused counts for nothing."""
    try:
        return spec.stored(stored.get(spec.name, spec.default))
    except OptionError:
        return spec.stored(spec.default)


def _widget(spec: OptionSpec) -> forms.Widget:
    if spec.kind == "bool":
        switch: forms.Widget = UnfoldBooleanSwitchWidget()
        return switch
    attrs: dict[str, Any] = {"spellcheck": "false", "autocomplete": "off"}
    if spec.kind != "ranges":
        attrs |= {"type": "number", "min": f"{spec.low:g}"}
        attrs["step"] = "1" if spec.kind == "int" else "any"
        if math.isfinite(spec.high):
            attrs["max"] = f"{spec.high:.0f}"
    text: forms.Widget = UnfoldAdminTextInputWidget(attrs=attrs)
    return text


def _bounds(spec: OptionSpec) -> str:
    if spec.kind not in {"int", "float"}:
        return ""
    if math.isinf(spec.high):
        return f"at least {spec.low:g}"
    return f"{spec.low:g} to {spec.high:,.0f}"


def _lines(form: OptionsForm, rows: dict[str, Option]) -> Iterator[OptionLine]:
    for name, spec in OPTIONS.items():
        default = spec.stored(spec.default)
        yield OptionLine(
            spec=spec,
            field=form[name],
            default=shown(default),
            bounds=_bounds(spec),
            is_default=form.in_force[name] == default,
            history_url=page_of(Option, rows[name].pk, "history") if name in rows else "",
        )
