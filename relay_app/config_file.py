"""Read a configuration file (spec 06 section 3) into typed rows. Pure: no database.

`load_config` returns the rows and every problem it found, each a line with its path, such
as `channels[2].prioritty: unknown key; did you mean priority?`. What a row does not name is
UNSET. `config_plan` holds the rows against the database, `config_apply` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from channels_app.options import option_spec
from relay_app import config_fields as check
from relay_app.config_fields import Place
from relay_app.config_text import ConfigError, parse
from relay_app.providers.registry import unknown_provider

VERSION = 1
NOT_YET = "not supported by this version yet"
# Sections of the format that this version has no rows for.
LATER_SECTIONS = frozenset({"preset", "auto_groups", "affinity_rules", "prices"})

MODELS = check.list_of(check.model_name, example='gpt-4o, "gpt-4o-*"')
# One row of each section that is a list, for those who wrote something else.
EXAMPLES = {
    "groups": "{name: default}",
    "channels": "{name: primary, type: openai}",
    "users": "{name: alice}",
    "tokens": "{name: ci, user: alice}",
}


def _provider(value: object, place: Place) -> str | UnsetType:
    name: str | UnsetType = check.text(32)(value, place)
    fault = unknown_provider(name) if isinstance(name, str) else None
    return name if fault is None else place.refuse(fault)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a section. A field that a file may name is annotated with its check."""

    # Keys of the format that this version can't apply yet.
    later: ClassVar[frozenset[str]] = frozenset()
    required: ClassVar[tuple[str, ...]] = ("name",)

    path: str
    # False: problems of this row are known, so that nothing more is asked of it.
    is_sound: bool


class GroupRow(Row, frozen=True, kw_only=True):
    """A row of `groups`."""

    later = frozenset({"user_groups"})

    name: Annotated[str, check.text(100)]
    ratio: Annotated[Any, check.decimal(places=6, high=check.MAX_RATIO)] = UNSET


class KeyRow(Row, frozen=True, kw_only=True):
    """One credential of a channel: given, or taken from the environment."""

    later = frozenset({"limits"})
    required = ()

    key: Annotated[str | UnsetType, check.secret] = UNSET
    env: Annotated[str | UnsetType, check.text(200)] = UNSET
    enabled: Annotated[bool | UnsetType, check.boolean] = UNSET


def _keys(value: object, place: Place) -> list[KeyRow] | UnsetType:
    if not isinstance(value, list):
        # Not shown: it may be the key itself.
        example = place.such_as("[sk-...]")
        return place.refuse(
            f"what stands here is not a list of keys; want a list, such as {example}"
        )
    found: dict[str, KeyRow] = {}
    for number, raw in enumerate(value):
        row = _key(raw, place.item(number))
        if row is None or isinstance(row.key, UnsetType):
            continue
        if row.key in found:
            place.item(number).refuse(f"the same key as {found[row.key].path}")
        else:
            found[row.key] = row
    return list(found.values())


def _key(raw: object, place: Place) -> KeyRow | None:
    """Return the credential with its value known, or None."""
    if not isinstance(raw, dict):
        value = check.secret(raw, place)
        return KeyRow(path=place.path, is_sound=True, key=value) if value else None
    row = _row(KeyRow, raw, place)
    if row is None or not row.is_sound:
        return None
    if (row.key is UNSET) == (row.env is UNSET):
        place.refuse("one of key and env is wanted")
        return None
    if isinstance(row.env, UnsetType):
        return row
    value = place.environ.get(row.env, "").strip()
    if not value:
        place.key("env").refuse(f"the environment variable {row.env} is not set")
        return None
    return msgspec.structs.replace(row, key=check.secret(value, place.key("env")))


class ChannelRow(Row, frozen=True, kw_only=True):
    """A row of `channels`."""

    later = frozenset(
        [
            "model_mapping",
            "param_override",
            "header_override",
            "fault_domain",
            "proxy",
            "supports_prefill",
            "health_scope",
            "bill_upstream_model",
            "limits",
        ]
    )

    name: Annotated[str, check.text(100)]
    type: Annotated[str | UnsetType, _provider] = UNSET
    base_url: Annotated[str | UnsetType, check.base_url] = UNSET
    keys: Annotated[list[KeyRow] | UnsetType, _keys] = UNSET
    key_mode: Annotated[str | UnsetType, check.one_of("random", "polling")] = UNSET
    models: Annotated[list[str] | UnsetType, MODELS] = UNSET
    groups: Annotated[list[str] | UnsetType, check.list_of(check.text(100), example="default")] = (
        UNSET
    )
    priority: Annotated[int | UnsetType, check.integer(-check.MAX_INT)] = UNSET
    weight: Annotated[int | UnsetType, check.integer(0)] = UNSET
    enabled: Annotated[bool | UnsetType, check.boolean] = UNSET
    auto_ban: Annotated[bool | UnsetType, check.boolean] = UNSET
    status_code_mapping: Annotated[dict[str, int] | UnsetType, check.status_mapping] = UNSET
    timeouts: Annotated[dict[str, float] | UnsetType, check.timeouts] = UNSET
    test_model: Annotated[str | UnsetType, check.text(200, may_be_empty=True)] = UNSET
    settings: Annotated[dict[str, Any] | UnsetType, check.json_mapping] = UNSET


class UserRow(Row, frozen=True, kw_only=True):
    """A row of `users`."""

    name: Annotated[str, check.user_name]
    group: Annotated[str | UnsetType, check.text(100)] = UNSET
    balance_usd: Annotated[Any, check.decimal(places=9, high=check.MAX_BALANCE_USD)] = UNSET
    staff: Annotated[bool | UnsetType, check.boolean] = UNSET


class TokenRow(Row, frozen=True, kw_only=True):
    """A row of `tokens`."""

    later = frozenset(
        [
            "cross_group_retry",
            "specific_channel",
            "limit_usd",
            "allow_ips",
            "rpm",
            "tpm",
            "concurrency",
            "daily_limit_usd",
            "monthly_limit_usd",
        ]
    )
    required = ("name", "user")

    name: Annotated[str, check.text(100)]
    user: Annotated[str, check.user_name]
    key: Annotated[str | UnsetType, check.secret] = UNSET
    key_hash: Annotated[str | UnsetType, check.hex_hash] = UNSET
    group: Annotated[str | UnsetType, check.text(100, may_be_empty=True)] = UNSET
    unlimited: Annotated[bool | UnsetType, check.boolean] = UNSET
    enabled: Annotated[bool | UnsetType, check.boolean] = UNSET
    models: Annotated[list[str] | UnsetType, MODELS] = UNSET
    expires_at: Annotated[Any, check.moment] = UNSET


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read: its rows, and what is wrong with them."""

    options: dict[str, Any]
    groups: list[GroupRow]
    channels: list[ChannelRow]
    users: list[UserRow]
    tokens: list[TokenRow]
    problems: list[str]


SECTIONS = ("version", "options", "groups", "channels", "users", "tokens")
R = TypeVar("R", bound=Row)


def read_config(path: Path, *, environ: Mapping[str, str]) -> Config:
    """Return the configuration in the file; raises ConfigError when it is no mapping."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't be read: {error.strerror or error}") from None
    try:
        text = raw.decode("utf-8-sig")
        return load_config(text, environ=environ, is_json=path.suffix.lower() == ".json")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start})") from None


def load_config(text: str, *, environ: Mapping[str, str], is_json: bool = False) -> Config:
    """Return the configuration in `text`, YAML or JSON, with the problems of its rows.

    `environ` is where keys given as `{env: NAME}` come from. Raises ConfigError when the
    text can't be read as one mapping.
    """
    raw = parse(text, is_json=is_json)
    if raw is None:
        raise ConfigError("is empty; a mapping with version, options, channels, ... is wanted")
    if not isinstance(raw, dict):
        raise ConfigError(f"{check.shown(raw)} is at the top, where a mapping is wanted")
    top = Place(environ=environ)
    for name in raw:
        if name not in SECTIONS:
            top.key(name).refuse(_unknown(name, SECTIONS, LATER_SECTIONS))
    version = raw.get("version")
    if "version" not in raw:
        top.key("version").refuse(f"is missing; wanted {VERSION}")
    elif version != VERSION or isinstance(version, bool):
        top.key("version").wrong(version, f"{VERSION}, the version of the format")
    config = Config(
        options=_options(raw.get("options"), top.key("options")),
        groups=_section(GroupRow, raw.get("groups"), top.key("groups")),
        channels=_section(ChannelRow, raw.get("channels"), top.key("channels")),
        users=_section(UserRow, raw.get("users"), top.key("users")),
        tokens=_section(TokenRow, raw.get("tokens"), top.key("tokens")),
        problems=top.problems,
    )
    for token in config.tokens:
        if token.key is not UNSET and token.key_hash is not UNSET:
            top.problems.append(f"{token.path}: one of key and key_hash is wanted, not both")
    return config


def _options(raw: object, place: Place) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        place.wrong_kind(raw, "a mapping of options", "{RetryTimes: 3}")
        return {}
    found = {}
    for name, value in raw.items():
        if not isinstance(name, str):
            place.key(name).refuse("unknown option")
        elif fault := check.json_fault(value):
            place.key(name).refuse(fault)
        else:
            try:
                found[name] = option_spec(name).stored(value)
            except ValueError as error:
                place.key(name).refuse(str(error).removeprefix(f"{name}: "))
    return found


def _section(kind: type[R], raw: object, place: Place) -> list[R]:
    """Return the rows of a section that can be told apart by their names."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        place.wrong_kind(raw, "a list of rows", f"[{EXAMPLES[place.path]}]")
        return []
    found: dict[tuple[Any, ...], R] = {}
    for number, item in enumerate(raw):
        row = _row(kind, item, place.item(number))
        if row is None:
            continue
        name = tuple(getattr(row, part) for part in kind.required)
        if name in found:
            reason = f"the same {' and '.join(kind.required)} as {found[name].path}"
            place.item(number).refuse(reason)
        else:
            found[name] = row
    return list(found.values())


def _row(kind: type[R], raw: object, place: Place) -> R | None:
    """Return `raw` as a row, or None when it is no mapping or lacks what names it."""
    if not isinstance(raw, dict):
        example = EXAMPLES.get(place.path.partition("[")[0], "{key: sk-...}")
        place.wrong_kind(raw, "a mapping", example)
        return None
    count = len(place.problems)
    checks = file_fields(kind)
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name in checks:
            values[name] = checks[name](value, place.key(name))
        elif kind is KeyRow and name not in kind.later:
            # Not repeated: a credential that lacks its `key:` may stand here.
            place.refuse(f"has an unknown key; known: {', '.join(checks)}")
        else:
            place.key(name).refuse(_unknown(name, checks, kind.later))
    for name in kind.required:
        if name not in raw:
            place.key(name).refuse("is missing")
        if values.get(name, UNSET) is UNSET:
            return None
    return kind(**values, path=place.path, is_sound=len(place.problems) == count)


@cache
def file_fields(kind: type[Row]) -> dict[str, check.Check]:
    """Return the keys that a row of this kind may name, each with its check."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")
    }


def _unknown(
    name: object, known: Mapping[str, Any] | tuple[str, ...], later: frozenset[str]
) -> str:
    if name in later:
        return NOT_YET
    hint = check.nearest(name, known) if isinstance(name, str) else ""
    return f"unknown key{hint or '; known: ' + ', '.join(known)}"
