"""The rows of a configuration file: which keys each kind may name, and their checks.

What a row does not name is UNSET. Pure: no database.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from channels_app.services import secret_hash
from relay_app import config_channel_fields as channel_check
from relay_app import config_fields as check
from relay_app import config_money_fields as money_check
from relay_app.config_channel_fields import Kept
from relay_app.config_fields import Place
from relay_app.providers.registry import unknown_provider

NOT_YET = "not supported by this version yet"

MODELS = check.list_of(check.model_name, example='gpt-4o, "gpt-4o-*"')
GROUPS = check.list_of(check.text(100), example="default")
ADDRESSES = check.list_of(check.network, example="203.0.113.7, 10.0.0.0/8")
# One row of each section that is a list, for those who wrote something else.
EXAMPLES = {
    "groups": "{name: default}",
    "channels": "{name: primary, type: openai}",
    "users": "{name: alice}",
    "tokens": "{name: ci, user: alice}",
    "prices": "{model: gpt-4o, input: 2.5, output: 10}",
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

    name: Annotated[str, check.text(100)]
    ratio: Annotated[Any, check.decimal(places=6, high=check.MAX_RATIO)] = UNSET
    user_groups: Annotated[list[str] | UnsetType, GROUPS] = UNSET


class KeyRow(Row, frozen=True, kw_only=True):
    """One credential of a channel: given, taken from the environment, or there already.

    After reading, either `key` is known or `hash` says which of the channel's is meant.
    """

    required = ()

    key: Annotated[str | UnsetType, check.secret] = UNSET
    env: Annotated[str | UnsetType, check.variable] = UNSET
    hash: Annotated[str | UnsetType, check.hex_hash] = UNSET
    enabled: Annotated[bool | UnsetType, check.boolean] = UNSET
    limits: Annotated[dict[str, int] | UnsetType, channel_check.rate_limits] = UNSET

    @property
    def value_hash(self) -> str:
        """Return what the key is matched by."""
        return str(self.hash) if isinstance(self.key, UnsetType) else secret_hash(self.key)


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
        if row is None:
            continue
        if row.value_hash in found:
            place.item(number).refuse(f"the same key as {found[row.value_hash].path}")
        else:
            found[row.value_hash] = row
    return list(found.values())


def _key(raw: object, place: Place) -> KeyRow | None:
    """Return the credential with its value known, or the hash of one that is kept; or None."""
    if not isinstance(raw, dict):
        value = check.secret(raw, place)
        return KeyRow(path=place.path, is_sound=True, key=value) if value else None
    row = read_row(KeyRow, raw, place)
    if row is None or not row.is_sound:
        return None
    has_stand_in = not (row.env is UNSET and row.hash is UNSET)
    if (row.key is UNSET) != has_stand_in:
        place.refuse("one of key and env is wanted, or env and hash, or hash")
        return None
    if isinstance(row.env, UnsetType):
        return row
    value = place.environ.get(row.env, "").strip()
    if value:
        known = check.secret(value, place.key("env"))
        return msgspec.structs.replace(row, key=known) if known else None
    if row.hash is UNSET:
        place.key("env").refuse(f"the environment variable {row.env} is not set")
        return None
    return row


class ChannelRow(Row, frozen=True, kw_only=True):
    """A row of `channels`."""

    name: Annotated[str, check.text(100)]
    type: Annotated[str | UnsetType, _provider] = UNSET
    base_url: Annotated[str | UnsetType, check.base_url] = UNSET
    keys: Annotated[list[KeyRow] | UnsetType, _keys] = UNSET
    key_mode: Annotated[str | UnsetType, check.one_of("random", "polling")] = UNSET
    models: Annotated[list[str] | UnsetType, MODELS] = UNSET
    groups: Annotated[list[str] | UnsetType, GROUPS] = UNSET
    priority: Annotated[int | UnsetType, check.integer(-check.MAX_INT)] = UNSET
    weight: Annotated[int | UnsetType, check.integer(0)] = UNSET
    enabled: Annotated[bool | UnsetType, check.boolean] = UNSET
    auto_ban: Annotated[bool | UnsetType, check.boolean] = UNSET
    model_mapping: Annotated[dict[str, str] | UnsetType, channel_check.model_mapping] = UNSET
    param_override: Annotated[dict[str, Any] | UnsetType, channel_check.param_override] = UNSET
    header_override: Annotated[dict[str, str | Kept] | UnsetType, channel_check.header_override] = (
        UNSET
    )
    status_code_mapping: Annotated[dict[str, int] | UnsetType, check.status_mapping] = UNSET
    timeouts: Annotated[dict[str, float] | UnsetType, check.timeouts] = UNSET
    fault_domain: Annotated[str | UnsetType, check.text(100, may_be_empty=True)] = UNSET
    proxy: Annotated[str | Kept | UnsetType, channel_check.or_kept(channel_check.proxy)] = UNSET
    supports_prefill: Annotated[bool | UnsetType | None, check.boolean_or_null] = UNSET
    health_scope: Annotated[str | UnsetType, check.one_of("channel", "model")] = UNSET
    test_model: Annotated[str | UnsetType, check.text(200, may_be_empty=True)] = UNSET
    bill_upstream_model: Annotated[bool | UnsetType, check.boolean] = UNSET
    limits: Annotated[dict[str, int] | UnsetType, channel_check.rate_limits] = UNSET
    settings: Annotated[dict[str, Any] | UnsetType, channel_check.settings] = UNSET


class UserRow(Row, frozen=True, kw_only=True):
    """A row of `users`."""

    name: Annotated[str, check.user_name]
    group: Annotated[str | UnsetType, check.text(100)] = UNSET
    balance_usd: Annotated[Any, check.decimal(places=9, high=check.MAX_BALANCE_USD)] = UNSET
    staff: Annotated[bool | UnsetType, check.boolean] = UNSET
    enabled: Annotated[bool | UnsetType, check.boolean] = UNSET


class TokenRow(Row, frozen=True, kw_only=True):
    """A row of `tokens`."""

    required = ("name", "user")

    name: Annotated[str, check.text(100)]
    user: Annotated[str, check.user_name]
    key: Annotated[str | UnsetType, check.secret] = UNSET
    key_hash: Annotated[str | UnsetType, check.hex_hash] = UNSET
    group: Annotated[str | UnsetType, check.text(100, may_be_empty=True)] = UNSET
    unlimited: Annotated[bool | UnsetType, check.boolean] = UNSET
    limit_usd: Annotated[int | UnsetType | None, money_check.amount] = UNSET
    daily_limit_usd: Annotated[int | UnsetType | None, money_check.amount] = UNSET
    monthly_limit_usd: Annotated[int | UnsetType | None, money_check.amount] = UNSET
    enabled: Annotated[bool | UnsetType, check.boolean] = UNSET
    models: Annotated[list[str] | UnsetType, MODELS] = UNSET
    expires_at: Annotated[Any, check.moment] = UNSET
    cross_group_retry: Annotated[bool | UnsetType, check.boolean] = UNSET
    specific_channel: Annotated[str | UnsetType, check.text(100, may_be_empty=True)] = UNSET
    allow_ips: Annotated[list[str] | UnsetType, ADDRESSES] = UNSET
    rpm: Annotated[int | UnsetType, check.integer(0)] = UNSET
    tpm: Annotated[int | UnsetType, check.integer(0)] = UNSET
    concurrency: Annotated[int | UnsetType, check.integer(0)] = UNSET


class PriceRow(Row, frozen=True, kw_only=True):
    """A row of `prices`; null takes a price away."""

    required = ("model",)

    model: Annotated[str, check.model_name]
    input: Annotated[Any, money_check.price] = UNSET
    cached_input: Annotated[Any, money_check.price] = UNSET
    cache_write: Annotated[Any, money_check.price] = UNSET
    cache_write_1h: Annotated[Any, money_check.price] = UNSET
    output: Annotated[Any, money_check.price] = UNSET
    reasoning_output: Annotated[Any, money_check.price] = UNSET
    image_input: Annotated[Any, money_check.price] = UNSET
    audio_input: Annotated[Any, money_check.price] = UNSET
    audio_output: Annotated[Any, money_check.price] = UNSET
    per_call: Annotated[Any, money_check.price] = UNSET
    per_image: Annotated[Any, money_check.price] = UNSET
    per_second: Annotated[Any, money_check.price] = UNSET


R = TypeVar("R", bound=Row)


def read_row(kind: type[R], raw: object, place: Place) -> R | None:
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
            place.key(name).refuse(unknown(name, checks, kind.later))
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


def unknown(name: object, known: Mapping[str, Any] | tuple[str, ...], later: frozenset[str]) -> str:
    """Return why a key is refused: of a later version, or unknown, with the nearest one."""
    if name in later:
        return NOT_YET
    hint = check.nearest(name, known) if isinstance(name, str) else ""
    return f"unknown key{hint or '; known: ' + ', '.join(known)}"
