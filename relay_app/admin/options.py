"""The options on one page: each a typed field with its help, unit, bounds and default."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.forms import BoundField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from channels_app.models import Group, Option
from channels_app.options import OPTIONS, OptionError, OptionSpec
from channels_app.presets import MEANINGS, PRESETS
from channels_app.services import options_set
from relay_app.admin.base import HistoryAdmin, list_of_rows, page_of
from relay_app.admin.fields import MONOSPACE, fit
from relay_app.config_apply import preset_apply
from relay_app.config_fields import nearest

NUMBERS = {"int", "float"}
# Edited as many lines of text, and what stands in an empty field as an example.
EXAMPLES = {
    "lines": "",
    "names": "default\nvip",
    "model_lists": '{"gpt-4o": ["gpt-4o-mini"]}',
    "model_timeouts": '{"o1*": {"first_token": 300}}',
    "ratio_tables": '{"vip": {"default": "0.8"}}',
}
SHOWN_CHARS = 100
PRESET_PAGE = "channels_app_option_preset"


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

    def prepare_value(self, value: Any) -> Any:
        """Return the text to edit, in a box that it fits into."""
        if self.spec.kind in EXAMPLES:
            fit(self.widget, value, least=4)
        return value

    def clean(self, value: Any) -> Any:
        """Return the value as it is stored."""
        if self.spec.kind in NUMBERS and value in (None, ""):
            raise ValidationError(f"Type a value; the default is {shown(self.spec.default)}.")
        try:
            return self.spec.stored("" if value is None else value)
        except OptionError as error:
            raise ValidationError(str(error).removeprefix(f"{self.spec.name}: ")) from None


class OptionsForm(forms.Form):
    """All options, each with the value in force."""

    def __init__(self, *, stored: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.in_force = {name: _in_force(spec, stored) for name, spec in OPTIONS.items()}
        for name, spec in OPTIONS.items():
            self.fields[name] = OptionField(spec)
            self.initial[name] = _typed(spec, self.in_force[name])

    def clean(self) -> dict[str, Any]:
        """Refuse groups that don't exist."""
        data: dict[str, Any] = super().clean() or {}
        if data.get("AutoGroups") != self.in_force["AutoGroups"]:
            known = list(Group.objects.values_list("name", flat=True))
            for name in data.get("AutoGroups") or ():
                if name not in known:
                    self.add_error("AutoGroups", f"There is no group {name}{nearest(name, known)}.")
        return data

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
        presets = [(preset_url(name), name, MEANINGS[name]) for name in PRESETS]
        context = {
            **self.admin_site.each_context(request),
            "title": "Options",
            "presets": presets if may_edit else [],
            "opts": self.opts,
            "form": form,
            "banner": _banner(form),
            "lines": list(_lines(form, rows)),
            "may_edit": may_edit,
        }
        return TemplateResponse(request, "relay_app/admin/options.html", context)

    def get_urls(self) -> list[Any]:
        """Return the pages, with one for each preset."""
        page = self.admin_site.admin_view(self.preset_view)
        return [path("preset/<str:name>/", page, name=PRESET_PAGE), *super().get_urls()]

    def preset_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Show what a preset would change; a POST changes it."""
        if name not in PRESETS:
            raise Http404(f"no preset {name}")
        if not self.has_change_permission(request):
            raise PermissionDenied
        is_told = request.method == "POST"
        lines = preset_apply(name, is_dry_run=not is_told)
        changes = [line.removeprefix("~ option ") for line in lines]
        if is_told:
            text = f"Preset {name} applied: {'; '.join(changes) or 'nothing was changed'}"
            self.message_user(request, text, messages.SUCCESS)
            return HttpResponseRedirect(list_of_rows(Option))
        context = {
            **self.admin_site.each_context(request),
            "title": f"Preset {name}",
            "opts": self.opts,
            "name": name,
            "meaning": MEANINGS[name],
            "changes": changes,
            "list_url": list_of_rows(Option),
        }
        return TemplateResponse(request, "relay_app/admin/preset.html", context)


def preset_url(name: str) -> str:
    """Return the address of a preset's page."""
    return reverse(f"admin:{PRESET_PAGE}", args=(name,))


def title(name: str) -> str:
    """Return an option's name in words: `RetryTimes` → `Retry times`."""
    return re.sub(r"(?<!^)([A-Z])", lambda match: f" {match[1].lower()}", name)


def shown(value: object) -> str:
    """Return a value as people write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if value in ("", [], {}):
        return "none"
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _banner(form: OptionsForm) -> str:
    """Return what stands above a form that was refused: which values are at fault."""
    names = ", ".join(title(name) for name in form.errors)
    return f"Nothing was stored. Please correct: {names}." if names else ""


def _typed(spec: OptionSpec, value: Any) -> Any:
    """Return a stored value as it stands in its field."""
    if spec.kind == "names":
        return "\n".join(value)
    if isinstance(value, dict):
        return json.dumps(value, indent=2, ensure_ascii=False) if value else ""
    return shown(value) if spec.kind in NUMBERS else value


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
    if spec.kind == "choice":
        select: forms.Widget = UnfoldAdminSelectWidget(choices=[(w, w) for w in spec.choices])
        return select
    if spec.kind in EXAMPLES:
        attrs = {"rows": 4, "placeholder": EXAMPLES[spec.kind], **MONOSPACE}
        area: forms.Widget = UnfoldAdminTextareaWidget(attrs=attrs)
        return area
    attrs = {"spellcheck": "false", "autocomplete": "off"}
    if spec.kind in NUMBERS:
        attrs |= {"type": "number", "min": f"{spec.low:g}"}
        attrs["step"] = "1" if spec.kind == "int" else "any"
        if math.isfinite(spec.high):
            attrs["max"] = f"{spec.high:.0f}"
    text: forms.Widget = UnfoldAdminTextInputWidget(attrs=attrs)
    return text


def _bounds(spec: OptionSpec) -> str:
    if spec.kind in EXAMPLES:
        is_text = spec.kind in {"lines", "names"}
        return "one a line" if is_text else f"such as {EXAMPLES[spec.kind]}"
    if spec.kind == "usd":
        return "USD, such as 0.05"
    if spec.kind not in NUMBERS:
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
