"""Form fields whose values are checked by the code that reads configuration files."""

from __future__ import annotations

import json
import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from channels_app.models import Group
from relay_app.config_fields import Check, Place, list_of, model_name

MONOSPACE = {"class": "font-mono", "spellcheck": "false"}


def checked(check: Check, value: object) -> Any:
    """Return the tidy value; raise ValidationError with all that the relay refuses."""
    place = Place()
    found = check(value, place)
    if place.problems:
        raise ValidationError([problem.removeprefix(": ") for problem in place.problems])
    return found


class MappingField(forms.Field):
    """A JSON mapping, checked by one of the relay's checks; empty text is an empty one."""

    def __init__(self, *, check: Check, **options: Any) -> None:
        self.check = check
        widget = UnfoldAdminTextareaWidget(attrs={"rows": 4, **MONOSPACE})
        super().__init__(required=False, widget=widget, **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the text to edit."""
        if isinstance(value, str):
            return value
        return json.dumps(value, indent=2, ensure_ascii=False) if value else ""

    def to_python(self, value: Any) -> Any:
        """Return the mapping; raise ValidationError if it is none that the relay takes."""
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.strip() else {}
            except json.JSONDecodeError as error:
                at = f"line {error.lineno}, column {error.colno}"
                raise ValidationError(f"This is no JSON: {error.msg} ({at}).") from None
            except RecursionError:
                raise ValidationError("This is nested too deeply.") from None
            except ValueError:  # Python reads no whole number of thousands of digits
                raise ValidationError("This holds a number that is too long.") from None
        return checked(self.check, {} if value is None else value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether the mapping differs, not whether its text does."""
        try:
            return bool(self.to_python(data) != (initial or {}))
        except ValidationError:
            return True


class ModelNamesField(forms.Field):
    """Names of models, one a line or with commas; a `*` may stand at the end."""

    def __init__(self, **options: Any) -> None:
        widget = UnfoldAdminTextareaWidget(attrs={"rows": 6, **MONOSPACE})
        super().__init__(required=False, widget=widget, **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the text to edit: a name a line."""
        return "\n".join(str(name) for name in value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str]:
        """Return the names, each once."""
        if not isinstance(value, list):
            value = _names(value or "")
        names: list[str] = checked(list_of(model_name), value)
        return names

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether the names differ."""
        try:
            return self.to_python(data) != (initial or [])
        except ValidationError:
            return True


def _names(text: str) -> list[Any]:
    if text.lstrip().startswith("["):  # a list pasted from a file or another relay
        try:
            found: list[Any] = json.loads(text)
        except ValueError:
            raise ValidationError("This begins like a JSON list but is none.") from None
        return found
    return [name.strip() for name in re.split(r"[\n,]", text) if name.strip()]


class GroupNameField(forms.ChoiceField):
    """The name of a group that exists; `present` is kept as a choice even if it does not."""

    def __init__(self, *, present: str = "", empty: str | None = None, **options: Any) -> None:
        names = list(Group.objects.values_list("name", flat=True))
        choices = [] if empty is None else [("", empty)]
        if present and present not in names:
            choices.append((present, f"{present} (does not exist)"))
        choices += [(name, name) for name in names]
        super().__init__(
            choices=choices,
            required=empty is None,
            widget=UnfoldAdminSelectWidget(),
            **options,
        )
