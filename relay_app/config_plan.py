"""Hold the rows of a configuration file against the database: what would change.

Nothing is written here. A plan gathers unsaved rows, the lines that describe them, and the
problems that only the database can tell, such as a group that nobody has made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model
from msgspec import UNSET, UnsetType

from billing_app.models import User
from channels_app.models import Channel, Group, Option
from channels_app.options import OPTIONS
from relay_app.config_channel_fields import set_limits
from relay_app.config_fields import SHOWN_CHARS, nearest, shown, tidy_network, without_password
from relay_app.config_file import AUTO_GROUPS, Config
from relay_app.config_notes import unknown_user_groups
from relay_app.config_rows import Row, UserRow

NANO = 10**9
CHUNK = 500  # values in one query, below every database's limit of parameters

# Keys of the file → attributes of the model. Keys with rules of their own are not here.
GROUP_ATTRIBUTES = {"ratio": "ratio", "user_groups": "user_groups"}
USER_ATTRIBUTES = {"group": "group", "staff": "is_staff", "enabled": "is_active"}
AUTO = "auto"  # as a group: the option AutoGroups, in order
# Keys of texts that may hold a password.
SECRETS = {"proxy"}
# Keys of mappings that hold no secret and are short enough for a line.
SPELLED_OUT = {"limits", "timeouts", "status_code_mapping", "model_mapping"}
MAX_PAIRS_CHARS = 200

V = TypeVar("V")


@dataclass(kw_only=True)
class Plan:
    """What applying a file would do, in the order of writing."""

    problems: list[str]
    lines: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    # Rows to save: all fields of a new one (None), the named fields of another.
    saves: list[tuple[Model, list[str] | None]] = field(default_factory=list)
    deletes: list[Model] = field(default_factory=list)
    joins: list[tuple[Channel, Group]] = field(default_factory=list)
    leaves: list[tuple[Channel, Group]] = field(default_factory=list)

    def refuse(self, path: str, reason: str) -> None:
        """Note a problem."""
        self.problems.append(f"{path}: {reason}")

    def save(self, row: Model, fields: Iterable[str]) -> None:
        """Plan to save `row`: all of a new one, else the named fields if there are any."""
        if is_new(row):
            self.saves.append((row, None))
        elif names := list(fields):
            self.saves.append((row, names))

    def delete(self, row: Model, title: str) -> None:
        """Plan to delete `row`, and add its line."""
        self.deletes.append(row)
        self.lines.append(f"- {title}")

    def say(self, row: Model, title: str, *, words: Sequence[str]) -> None:
        """Add the line of a row: that it is new, or what changed in it."""
        if is_new(row):
            self.lines.append(f"+ {title}")
        elif words:
            self.lines.append(f"~ {title}: {', '.join(words)}")


def is_new(row: Model) -> bool:
    """Return whether `row` is not in the database yet."""
    return row.pk is None


def plan_options(plan: Plan, config: Config) -> None:
    """Plan the options that differ from what is in force."""
    stored = dict(Option.objects.values_list("name", "value"))
    for name, value in config.options.items():
        spec = OPTIONS[name]
        present = stored[name] if name in stored else spec.stored(spec.default)
        if not same(present, value):
            plan.options[name] = value
            plan.lines.append(f"~ option {option_change(name, present, value)}")


def option_change(name: str, old: object, new: object) -> str:
    """Return how an option changed; a mapping is not spelled out."""
    is_mapping = isinstance(old, dict) or isinstance(new, dict)
    return f"{name}: changed" if is_mapping else f"{name}: {said(old)} -> {said(new)}"


def plan_groups(plan: Plan, config: Config) -> dict[str, Group]:
    """Plan the groups; return all groups that will be there, by name."""
    groups = {group.name: group for group in Group.objects.all()}
    new = {row.name for row in config.groups}.difference(groups)
    for row in config.groups:
        group = groups.setdefault(row.name, Group(name=row.name))
        if row.name == AUTO and is_new(group):
            plan.refuse(f"{row.path}.name", f"{AUTO} stands for all of {AUTO_GROUPS}")
        fields, words = take(row, group, GROUP_ATTRIBUTES)
        if "user_groups" in fields:
            notes = unknown_user_groups(group.user_groups, groups={*groups, *new})
            plan.notices += [f"{row.path}.user_groups: {note}" for note in notes]
        validate(plan, row, group, fields=fields, names={"name": "name", **GROUP_ATTRIBUTES})
        plan.save(group, fields)
        plan.say(group, f"group {row.name}", words=words)
    return groups


def check_auto_groups(plan: Plan, config: Config, groups: Mapping[str, Group]) -> None:
    """Note a problem for each name in the option AutoGroups that will be no group."""
    path = "auto_groups" if "auto_groups" in config.sections else f"options.{AUTO_GROUPS}"
    for number, name in enumerate(plan.options.get(AUTO_GROUPS, ())):
        need_group(plan, f"{path}[{number}]", name, groups)


def plan_users(plan: Plan, config: Config, groups: Mapping[str, Group]) -> dict[str, User]:
    """Plan the users; return those that the file speaks of, by name."""
    names = {row.name for row in config.users} | {row.user for row in config.tokens}
    users: dict[str, User] = User.objects.in_bulk(sorted(names), field_name="username")
    for row in config.users:
        user = users.setdefault(row.name, _new_user(row))
        if row.group not in (user.group, AUTO):
            need_group(plan, f"{row.path}.group", row.group, groups)
        fields, words = take(row, user, USER_ATTRIBUTES)
        validate(plan, row, user, fields=fields, names={"name": "username", **USER_ATTRIBUTES})
        plan.save(user, fields)
        plan.say(user, f"user {row.name}", words=words)
    return users


def _new_user(row: UserRow) -> User:
    balance = Decimal(0) if isinstance(row.balance_usd, UnsetType) else row.balance_usd
    user = User(username=row.name, opening_balance_nusd=int(balance * NANO))
    user.set_unusable_password()
    return user


def need_group(plan: Plan, path: str, name: str | UnsetType, groups: Mapping[str, Group]) -> None:
    """Note a problem at `path` if `name` is given and will be no group."""
    if not isinstance(name, UnsetType) and name not in groups:
        plan.refuse(path, f"no group {shown(name)}{nearest(name, groups)}")


def take(row: Row, instance: Model, attributes: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Set what `row` names on `instance`; return the changed fields and words for them."""
    fields, words = [], []
    for key, attribute in attributes.items():
        value, present = getattr(row, key), getattr(instance, attribute)
        if value is UNSET or same(present, value):
            continue
        meaning = MEANINGS.get(key)
        if meaning is not None and meaning(present) == meaning(value):
            continue
        setattr(instance, attribute, value)
        fields.append(attribute)
        words.append(difference(key, present, value))
    return fields, words


def validate(
    plan: Plan, row: Row, instance: Model, *, fields: Iterable[str], names: Mapping[str, str]
) -> None:
    """Note what the model's own checks say of the fields that the file sets."""
    checked = {*fields, names["name"]} if is_new(instance) else set(fields)
    others = {column.name for column in instance._meta.fields} - checked  # noqa: SLF001 - public API
    try:
        instance.clean_fields(exclude=others)
    except ValidationError as error:
        keys = {attribute: key for key, attribute in names.items()}
        for attribute, reasons in error.message_dict.items():
            plan.refuse(f"{row.path}.{keys[attribute]}", " ".join(reasons))


def difference(key: str, old: object, new: object) -> str:
    """Return how `key` changed, in a few words and without what may be secret."""
    if isinstance(old, list) and isinstance(new, list):
        added, gone = names_in(new) - names_in(old), names_in(old) - names_in(new)
        return f"{key} +{len(added)} -{len(gone)}"
    if key in SPELLED_OUT and isinstance(old, dict) and isinstance(new, dict):
        words = f"{key} {_pairs(old)} -> {_pairs(new)}"
        return words if len(words) <= MAX_PAIRS_CHARS else f"{key} changed"
    if isinstance(new, dict) or key in SECRETS:
        return f"{key} changed"
    if key.endswith("_usd"):
        old, new = (None if n is None else Decimal(str(n)) / NANO for n in (old, new))
    return f"{key} {said(old)} -> {said(new)}"


def _pairs(mapping: dict[str, Any]) -> str:
    pairs = (f"{name}: {said(mapping[name])}" for name in sorted(mapping))
    return f"{{{', '.join(pairs)}}}"


def said(value: object) -> str:
    """Return `value` as it stands in a line of the diff."""
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value:
        return without_password(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list) and len(text := ", ".join(map(str, value))) <= SHOWN_CHARS:
        return f"[{text}]"
    return shown(value)


def _tidy(address: str) -> str:
    try:
        return tidy_network(address)
    except ValueError:
        return address


def names_in(value: object) -> set[str]:
    """Return the names in a list as it stands in a row, which may hold anything."""
    return {name for name in value if isinstance(name, str)} if isinstance(value, list) else set()


def same(left: object, right: object) -> bool:
    """Return whether two values are equal as JSON: unlike in Python, true is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(same(one, other) for one, other in pairs)
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def chunks(values: Sequence[V], *, size: int = CHUNK) -> Iterator[Sequence[V]]:
    """Yield `values` in parts small enough for one query."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


# Keys whose values say the same in several ways; these functions make them comparable.
MEANINGS: Mapping[str, Callable[[Any], object]] = {
    "models": names_in,
    "user_groups": names_in,
    "allow_ips": lambda value: {_tidy(name) for name in names_in(value)},
    "limits": set_limits,
}
