"""ORM → the tables of tokens and prices: whole, in slices, or only what changed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from django.db.models import Q, QuerySet

from billing_app.core.pricing import PriceTable, PriceView, price_table
from billing_app.core.types import TokenView
from billing_app.models import OTHER_PRICES, TOKEN_PRICES, Price, Token

SLICE = 500  # rows between two pauses: about 5 ms of work
PAUSE_S = 0.002
# Stands for an address in a row that is none: the network of no host.
NOWHERE = ip_network("255.255.255.255/32")

_FIELDS = [
    "id",
    "name",
    "key_hash",
    "group",
    "is_enabled",
    "expires_at",
    "model_names",
    "allow_ips",
    "cross_group_retry",
    "specific_channel",
    "is_unlimited",
    "limit_nusd",
    "daily_limit_nusd",
    "monthly_limit_nusd",
    "rpm",
    "tpm",
    "concurrency",
    "user_id",
    "user__username",
    "user__group",
    "user__is_active",
    "user__is_staff",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """All tokens, by the hash of their key. Never changes; patched by copy."""

    by_hash: Mapping[str, TokenView] = field(default_factory=dict)
    hash_by_id: Mapping[int, str] = field(default_factory=dict)


def load_prices() -> PriceTable:
    """Return the table of all prices: some thousands at most, one query."""
    names = ("model", *TOKEN_PRICES, *OTHER_PRICES)
    rows = Price.objects.values_list(*names)
    return price_table(PriceView(**dict(zip(names, row, strict=True))) for row in rows)


def load_tokens() -> TokenTable:
    """Return the table of all tokens."""
    return _table({}, {}, _rows(Token.objects.all()))


def patch_tokens(
    table: TokenTable, *, token_ids: Collection[int], user_ids: Collection[int]
) -> TokenTable:
    """Return `table` with the named tokens, and all tokens of the users, read anew."""
    by_hash, hash_by_id = dict(table.by_hash), dict(table.hash_by_id)
    users = set(user_ids)
    gone = set(token_ids)
    if users:
        gone |= {token.id for token in by_hash.values() if token.user_id in users}
    for token_id in gone:
        old_hash = hash_by_id.pop(token_id, None)
        if old_hash is not None:
            by_hash.pop(old_hash, None)
    changed = Token.objects.filter(Q(pk__in=list(gone)) | Q(user_id__in=list(users)))
    return _table(by_hash, hash_by_id, _rows(changed))


def find_token(key_hash: str) -> TokenView | None:
    """Return the token with this hash from the database, or None."""
    row = Token.objects.filter(key_hash=key_hash).values(*_FIELDS).first()
    return None if row is None else _view(row)


def _table(
    by_hash: dict[str, TokenView],
    hash_by_id: dict[int, str],
    rows: Iterator[dict[str, Any]],
) -> TokenTable:
    for row in rows:
        by_hash[row["key_hash"]] = _view(row)
        hash_by_id[row["id"]] = row["key_hash"]
    return TokenTable(by_hash=by_hash, hash_by_id=hash_by_id)


def _rows(tokens: QuerySet[Token]) -> Iterator[dict[str, Any]]:
    last_id = 0
    while True:
        page = list(tokens.filter(id__gt=last_id).order_by("id").values(*_FIELDS)[:SLICE])
        if not page:
            return
        yield from page
        last_id = page[-1]["id"]
        time.sleep(PAUSE_S)


def _view(row: dict[str, Any]) -> TokenView:
    expires_at = row["expires_at"]
    return TokenView(
        id=row["id"],
        name=row["name"],
        user_id=row["user_id"],
        user_name=row["user__username"],
        group=row["group"] or row["user__group"],
        is_enabled=row["is_enabled"] and row["user__is_active"],
        expires_s=None if expires_at is None else expires_at.timestamp(),
        models=_models(row["model_names"] or []),
        user_group=row["user__group"],
        is_cross_group=row["cross_group_retry"],
        specific_channel=row["specific_channel"] if row["user__is_staff"] else "",
        networks=_networks(row["allow_ips"] or []),
        limit_nusd=_limit(row),
        daily_limit_nusd=row["daily_limit_nusd"],
        monthly_limit_nusd=row["monthly_limit_nusd"],
        rpm=row["rpm"],
        tpm=row["tpm"],
        concurrency=row["concurrency"],
    )


def _limit(row: dict[str, Any]) -> int | None:
    """Return what the token may spend in all; one that is limited to nothing named may nothing."""
    return None if row["is_unlimited"] else row["limit_nusd"] or 0


def _networks(texts: object) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks; a row that holds something else allows none, not all."""
    found: list[IPv4Network | IPv6Network] = []
    for text in texts if isinstance(texts, list) else [texts]:
        try:
            found.append(ip_network(str(text), strict=False))
        except ValueError:
            found.append(NOWHERE)
    return tuple(found)


def _models(names: object) -> tuple[str, ...]:
    """Return the names; a row that holds something else allows nothing, not all."""
    return tuple(map(str, names if isinstance(names, list) else [names]))
