"""Form fields whose values are checked by the code that reads configuration files."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from billing_app.core.money import show_usd, usd_to_nusd
from channels_app.models import Group
from relay_app.config_channel_fields import Kept, header_override
from relay_app.config_fields import MAX_INT, Check, Place, list_of
from relay_app.routes import AUTO

MONOSPACE = {"class": "font-mono", "spellcheck": "false"}
MOST_ROWS = 30
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
# Stands for the value of a header, which is not shown. No header can hold it: it is not Latin-1.
MASK = "•••"

# What is stored for later versions; nothing happens by it.
NOT_YET = "Not in use yet"


def fit(widget: forms.Widget, text: object, *, least: int) -> None:
    """Make a box of text as high as what stands in it, between `least` and MOST_ROWS lines."""
    lines = text.count("\n") + 1 if isinstance(text, str) else 1
    widget.attrs["rows"] = min(MOST_ROWS, max(least, lines))


def checked(check: Check, value: object) -> Any:
    """Return the tidy value; raise ValidationError with all that the relay refuses."""
    place = Place()
    found = check(value, place)
    if place.problems:
        raise ValidationError([problem.removeprefix(": ") for problem in place.problems])
    return found


class MappingField(forms.Field):
    """A JSON mapping, checked by one of the relay's checks; empty text is an empty one."""

    def __init__(self, *, check: Check, rows: int = 4, **options: Any) -> None:
        self.check, self.rows = check, rows
        widget = UnfoldAdminTextareaWidget(attrs={"rows": rows, **MONOSPACE})
        super().__init__(required=False, widget=widget, **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the text to edit, in a box that it fits into."""
        if not isinstance(value, str):
            value = json.dumps(value, indent=2, ensure_ascii=False) if value else ""
        fit(self.widget, value, least=self.rows)
        return value

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
        return self._checked({} if value is None else value)

    def _checked(self, value: Any) -> Any:
        return checked(self.check, value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether the mapping differs, not whether its text does."""
        try:
            return bool(self.to_python(data) != (initial or {}))
        except ValidationError:
            return True


class HeadersField(MappingField):
    """Headers whose values, once saved, are shown as MASK; where it is left they are kept.

    `present` is what the channel has.
    """

    def __init__(self, **options: Any) -> None:
        self.present: dict[str, str] = {}
        super().__init__(check=header_override, **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the text to edit: names, and masks for values."""
        masked = dict.fromkeys(value, MASK) if isinstance(value, dict) else value
        return super().prepare_value(masked)

    def to_python(self, value: Any) -> Any:
        """Return the headers, those that are masked with the value that they had."""
        headers = super().to_python(value)
        for name, one in headers.items():
            if isinstance(one, Kept):
                if name not in self.present:
                    raise ValidationError(f"{name}: there is no value to keep; type one.")
                headers[name] = self.present[name]
        return headers

    def _checked(self, value: Any) -> Any:
        if isinstance(value, dict):
            kept = {"kept": True}
            value = {name: kept if one == MASK else one for name, one in value.items()}
        return super()._checked(value)


class NamesField(forms.Field):
    """Texts that all pass one of the relay's checks, one a line or with commas."""

    def __init__(self, *, one: Check, rows: int = 6, **options: Any) -> None:
        self.one, self.rows = one, rows
        widget = UnfoldAdminTextareaWidget(attrs={"rows": rows, **MONOSPACE})
        super().__init__(required=False, widget=widget, **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the text to edit: a name a line."""
        text = "\n".join(str(name) for name in value) if isinstance(value, list) else value
        fit(self.widget, text, least=self.rows)
        return text

    def to_python(self, value: Any) -> list[str]:
        """Return the names, each once."""
        if not isinstance(value, list):
            value = _names(value or "")
        names: list[str] = checked(list_of(self.one), value)
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


class LimitField(forms.IntegerField):
    """How many of something are allowed; nothing typed is 0: no limit."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            required=False,
            initial=0,
            min_value=0,
            max_value=MAX_INT,
            widget=UnfoldAdminIntegerFieldWidget(),
            **options,
        )

    def clean(self, value: Any) -> int:
        """Return the number."""
        return super().clean(value) or 0


class NumberInput(UnfoldAdminTextInputWidget):  # type: ignore[misc]  # unfold is untyped
    """A box for a decimal number as text: in a number's box browsers drop a comma in silence,
    and the server would read 15 where 1,5 was typed."""

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        super().__init__(attrs={"inputmode": "decimal", "autocomplete": "off", **(attrs or {})})


class PlainDecimalField(forms.DecimalField):
    """A decimal number of digits and at most one point, shown without padding zeros."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"widget": NumberInput(), **options})

    def prepare_value(self, value: Any) -> Any:
        """Return the text to edit; what was typed stays as it is."""
        return f"{value.normalize():f}" if isinstance(value, Decimal) else value

    def to_python(self, value: Any) -> Any:
        """Return the number; raise ValidationError for commas, exponents and other texts."""
        if isinstance(value, str) and value.strip() and not _DECIMAL.fullmatch(value.strip()):
            raise ValidationError(
                "Write digits, with a point before the decimals and no comma, such as 12.50."
            )
        return super().to_python(value)


class UsdField(PlainDecimalField):
    """An amount of USD, kept as nano-dollars; empty is none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            required=False,
            min_value=0,
            max_digits=19,
            decimal_places=9,
            **options,
        )

    def prepare_value(self, value: Any) -> Any:
        """Return the amount in USD; what was typed stays as it is."""
        return show_usd(value, sign="") if isinstance(value, int) else value

    def clean(self, value: Any) -> int | None:
        """Return nano-dollars, or None."""
        amount = super().clean(value)
        return None if amount is None else usd_to_nusd(amount)

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare amounts, not texts."""
        return super().has_changed(self.prepare_value(initial), data)


class GroupNameField(forms.ChoiceField):
    """The name of a group that exists, or the word for several; `present` is kept as a choice
    even if it does not exist."""

    def __init__(self, *, present: str = "", empty: str | None = None, **options: Any) -> None:
        names = list(Group.objects.values_list("name", flat=True))
        choices = [] if empty is None else [("", empty)]
        if present and present not in (*names, AUTO):
            choices.append((present, f"{present} (does not exist)"))
        choices += [(name, name) for name in names]
        choices.append((AUTO, f"{AUTO}: those of option AutoGroups, in order"))
        super().__init__(
            choices=choices,
            required=empty is None,
            widget=UnfoldAdminSelectWidget(),
            **options,
        )
