"""Writes that have rules: issuing tokens."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime

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
) -> tuple[Token, str]:
    """Return a new token of `user` and its key, which can't be read again later.

    `key` None makes a random one (256 bits). Raises ValidationError when the name is
    taken or the key is in use.
    """
    key = key or new_key()
    token = Token(
        user=user,
        name=name,
        key_hash=key_hash(key),
        hint=key_hint(key),
        group=group,
        model_names=list(models),
        expires_at=expires_at,
    )
    token.full_clean()
    token.save()
    return token, key
