"""Read a configuration file (spec 06 section 3) into typed rows. Pure: no database.

`load_config` returns the rows and every problem it found, each a line with its path, such
as `channels[2].prioritty: unknown key; did you mean priority?`. `config_plan` holds the rows
against the database, `config_apply` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from channels_app.options import OPTIONS, option_spec
from channels_app.presets import PRESETS
from relay_app import config_fields as check
from relay_app.config_fields import Place
from relay_app.config_rows import (
    EXAMPLES,
    GROUPS,
    NOT_YET,
    ChannelRow,
    GroupRow,
    PriceRow,
    R,
    TokenRow,
    UserRow,
    read_row,
    unknown,
)
from relay_app.config_text import ConfigError, parse

VERSION = 1
SECTIONS = (
    "version",
    "preset",
    "options",
    "groups",
    "auto_groups",
    "channels",
    "users",
    "tokens",
    "prices",
)
# Sections of the format that this version has no rows for.
LATER_SECTIONS = frozenset({"affinity_rules"})
# Options of the format that this version does not have; one that it gets leaves this list.
LATER_OPTIONS = frozenset(
    [
        "ActiveProbeSeconds",
        "ActiveProbes",
        "AffinityMaxEntries",
        "AffinitySwitchOnSuccess",
        "AffinityTTL",
        "AutoRecover",
        "AutomaticDisableChannelEnabled",
        "AutomaticDisableKeywords",
        "AutomaticDisableOnQuota",
        "AutomaticDisableStatusCodes",
        "AutomaticEnableChannelEnabled",
        "ChannelTestMaxSeconds",
        "ChannelTestMinutes",
        "ContextWindowFallbacks",
        "ContinuationPrompt",
        "CooldownSeconds",
        "DrainSeconds",
        "FailoverEnabled",
        "FailoverOnEmptyResponse",
        "FailoverOnQuota",
        "FailoverOnRateLimit",
        "FailoverOnServerError",
        "FailoverOnStreamInterrupted",
        "FailoverOnTimeout",
        "FailoverOnTransportError",
        "FailureRatioMinimum",
        "FailureRatioThreshold",
        "FailureRatioWindow",
        "MaxConsecutiveFailures",
        "MaxCooldownSeconds",
        "MidStreamMaxRecoveries",
        "MidStreamRecovery",
        "ProbeLeaseSeconds",
        "QuotaCooldownSeconds",
        "TaskPollSeconds",
        "TaskTimeoutMinutes",
    ]
)
AUTO_GROUPS = "AutoGroups"  # the option that section `auto_groups` sets


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read: its rows, and what is wrong with them.

    `options` are those to set: the preset's, over them the file's. `sections` are those that
    the file names with a value; what is missing in them can be pruned.
    """

    options: dict[str, Any] = {}
    groups: list[GroupRow] = []
    channels: list[ChannelRow] = []
    users: list[UserRow] = []
    tokens: list[TokenRow] = []
    prices: list[PriceRow] = []
    sections: frozenset[str] = frozenset()
    problems: list[str] = []


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
    """Return the configuration in `text`, YAML or JSON; raises ConfigError if it is none."""
    return config_of(parse(text, is_json=is_json), environ=environ)


def config_of(raw: object, *, environ: Mapping[str, str]) -> Config:
    """Return the configuration in the parsed `raw`, with the problems of its rows.

    `environ` is where what is given as `{env: NAME}` comes from. Raises ConfigError when
    `raw` is no mapping.
    """
    if raw is None:
        raise ConfigError("is empty; a mapping with version, options, channels, ... is wanted")
    if not isinstance(raw, dict):
        raise ConfigError(f"{check.shown(raw)} is at the top, where a mapping is wanted")
    top = Place(environ=environ)
    for name in raw:
        if name not in SECTIONS:
            top.key(name).refuse(unknown(name, SECTIONS, LATER_SECTIONS))
    version = raw.get("version")
    if "version" not in raw:
        top.key("version").refuse(f"is missing; wanted {VERSION}")
    elif version != VERSION or isinstance(version, bool):
        top.key("version").wrong(version, f"{VERSION}, the version of the format")
    config = Config(
        options=_all_options(raw, top),
        groups=_section(GroupRow, raw.get("groups"), top.key("groups")),
        channels=_section(ChannelRow, raw.get("channels"), top.key("channels")),
        users=_section(UserRow, raw.get("users"), top.key("users")),
        tokens=_section(TokenRow, raw.get("tokens"), top.key("tokens")),
        prices=_section(PriceRow, raw.get("prices"), top.key("prices")),
        sections=frozenset(name for name in SECTIONS if raw.get(name) is not None),
        problems=top.problems,
    )
    for token in config.tokens:
        if token.key is not msgspec.UNSET and token.key_hash is not msgspec.UNSET:
            top.problems.append(f"{token.path}: one of key and key_hash is wanted, not both")
    return config


def _all_options(raw: Mapping[str, Any], top: Place) -> dict[str, Any]:
    """Return what `preset`, `options` and `auto_groups` set; the file's outrank the preset's."""
    found = _preset(raw.get("preset"), top.key("preset"))
    options = _options(raw.get("options"), top.key("options"))
    if raw.get("auto_groups") is not None:
        place = top.key("auto_groups")
        if AUTO_GROUPS in options:
            place.refuse(f"is the same as options.{AUTO_GROUPS}; one of them is wanted")
        names = GROUPS(raw["auto_groups"], place)
        options[AUTO_GROUPS] = names or []
    return found | options


def _preset(raw: object, place: Place) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, str) or raw not in PRESETS:
        known = check.nearest(raw, PRESETS) if isinstance(raw, str) else ""
        place.wrong(raw, f"a preset{known or '; known: ' + ', '.join(PRESETS)}")
        return {}
    return preset_options(raw)


def preset_options(name: str) -> dict[str, Any]:
    """Return the options of a preset in the form in which they are stored."""
    return {option: option_spec(option).stored(value) for option, value in PRESETS[name].items()}


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
        elif name in LATER_OPTIONS and name not in OPTIONS:
            place.key(name).refuse(NOT_YET)
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
        row = read_row(kind, item, place.item(number))
        if row is None:
            continue
        name = tuple(getattr(row, part) for part in kind.required)
        if name in found:
            reason = f"the same {' and '.join(kind.required)} as {found[name].path}"
            place.item(number).refuse(reason)
        else:
            found[name] = row
    return list(found.values())
