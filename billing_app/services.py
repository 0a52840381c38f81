"""Writes that have rules: issuing tokens, enabling and disabling them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.db import transaction

from billing_app.models import Token, User

KEY_PREFIX = "sk-relay-"
SHORTEST_HINTED = 16  # a shorter key would be given away by what is shown


def new_key() -> str:
    """Return a random key of 256 bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    """Return the SHA-256 of a client's key, in hex: all that is stored of it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def key_hint(key: str) -> str:
    """Return the first and last four characters of `key`, nothing of a short one."""
    return f"{key[:4]}…{key[-4:]}" if len(key) >= SHORTEST_HINTED else "…"


def token_create(
    *,
    user: User,
    name: str,
    key: str | None = None,
    group: str = "",
    models: tuple[str, ...] = (),
    expires_at: datetime | None = None,
    **limits: Any,
) -> tuple[Token, str]:
    """Return a new token of `user` and its key, which can't be read again later.

    `key` None makes a random one (256 bits); `limits` are further columns, such as `rpm`,
    `allow_ips` or `specific_channel`. Raises ValidationError when the name is
    taken or the key is in use.
    """
    token = Token(
        user=user,
        name=name,
        group=group,
        model_names=list(models),
        expires_at=expires_at,
        **limits,
    )
    key = token_give_key(token, key=key)
    token.full_clean()
    token.save()
    return token, key


def token_give_key(token: Token, *, key: str | None = None) -> str:
    """Set hash and hint of an unsaved key on `token`; return the key, for its only showing."""
    key = key or new_key()
    token.key_hash, token.hint = key_hash(key), key_hint(key)
    return key


@transaction.atomic
def tokens_set_enabled(*, token_ids: Collection[int], is_enabled: bool) -> int:
    """Enable or disable tokens by hand; return how many changed.

    Each is saved by itself, so that the snapshot and the history hear of it.
    """
    tokens = Token.objects.select_for_update(of=("self",)).filter(pk__in=list(token_ids))
    changed = [token for token in tokens if token.is_enabled is not is_enabled]
    for token in changed:
        token.is_enabled = is_enabled
        token.save(update_fields=["is_enabled"])
    return len(changed)
