"""Writes that have rules: issuing tokens, enabling and disabling them; paying in, redeeming."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from billing_app.core.operations import Credit, Done, Ignored, Kind
from billing_app.ledger import Failed, run_batch
from billing_app.models import LedgerEntry, RedemptionCode, Token, User

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
    if fault := limit_fault(is_unlimited=token.is_unlimited, limit_nusd=token.limit_nusd):
        raise ValidationError({"limit_nusd": fault})
    token.full_clean()
    token.save()
    return token, key


def limit_fault(*, is_unlimited: bool, limit_nusd: int | None) -> str:
    """Return why a token can't have both; empty if it can."""
    if is_unlimited and limit_nusd is not None:
        return "it is unlimited: leave the limit empty, or turn unlimited off"
    if not is_unlimited and limit_nusd is None:
        return "give a limit, or leave it unlimited"
    return ""


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


# -- money -----------------------------------------------------------------------------------

CODE_PREFIX = "rc-"
MAX_CODES = 10_000
MAX_BATCH_NAME = 100


class CodeRefusedError(Exception):
    """The code can't be redeemed; the text says why."""


class CreditRefusedError(Exception):
    """The amount can't be paid in or taken out; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What was paid in, and what the wallet had after it; `is_repeat`: an earlier call did it."""

    amount_nusd: int
    balance_nusd: int
    is_repeat: bool = False


def wallet_credit(
    *,
    user_id: int,
    amount_nusd: int,
    reason: str,
    actor_id: int | None = None,
    kind: Kind = Kind.TOP_UP,
    idempotency_key: uuid.UUID | None = None,
) -> Paid:
    """Pay into a wallet, or take out of it by a negative adjustment; return the new balance.

    A second call with the same `idempotency_key` changes nothing and returns what the first did.
    Raises CreditRefusedError.
    """
    if not amount_nusd or (amount_nusd < 0 and kind is not Kind.ADJUSTMENT):
        raise CreditRefusedError("a top-up must be more than 0; take money out by an adjustment")
    if not reason.strip():
        raise CreditRefusedError("say why: the reason stays with the entry")
    credit = Credit(
        wallet_id=user_id,
        amount_nusd=amount_nusd,
        kind=kind,
        reason=reason,
        actor_id=actor_id,
        idempotency_key=idempotency_key,
    )
    [outcome] = run_batch([credit])
    if isinstance(outcome, Failed):
        raise CreditRefusedError(str(outcome.error))
    if isinstance(outcome, Ignored):
        entry = LedgerEntry.objects.get(idempotency_key=idempotency_key)
        return Paid(amount_nusd=entry.amount_nusd, balance_nusd=entry.balance_nusd, is_repeat=True)
    assert isinstance(outcome, Done)
    return Paid(amount_nusd=amount_nusd, balance_nusd=outcome.balance_nusd)


def codes_create(
    *, batch: str, count: int, amount_nusd: int, expires_at: datetime | None = None
) -> list[str]:
    """Return new redemption codes, which can't be read again later; raise ValueError."""
    if not 1 <= count <= MAX_CODES or amount_nusd <= 0:
        raise ValueError(f"make 1 to {MAX_CODES} codes of more than 0 USD")
    if not 1 <= len(batch.strip()) <= MAX_BATCH_NAME:
        raise ValueError(f"name the batch, in at most {MAX_BATCH_NAME} characters")
    if expires_at is not None and expires_at <= timezone.now():
        raise ValueError("these codes would have expired already")
    codes = [CODE_PREFIX + secrets.token_urlsafe(18) for _ in range(count)]
    RedemptionCode.objects.bulk_create(
        RedemptionCode(
            batch=batch,
            code_hash=key_hash(code),
            hint=key_hint(code),
            amount_nusd=amount_nusd,
            expires_at=expires_at,
        )
        for code in codes
    )
    return codes


@transaction.atomic
def code_redeem(*, code: str, user_id: int) -> Paid:
    """Pay a code into the wallet of the user, once; raise CodeRefusedError."""
    now = timezone.now()
    usable = RedemptionCode.objects.filter(code_hash=key_hash(code), is_enabled=True)
    usable = usable.filter(Q(expires_at=None) | Q(expires_at__gt=now))
    found = usable.first()
    # Claimed by compare and set: of two at once, one gets it.
    if found is None or not usable.filter(pk=found.pk, redeemed_at=None).update(
        redeemed_at=now, redeemed_by_id=user_id
    ):
        is_own = found is not None and found.redeemed_by_id == user_id
        raise CodeRefusedError(
            "this account has redeemed this code already"
            if is_own
            else "this code does not exist, was redeemed already, or has expired"
        )
    return wallet_credit(
        user_id=user_id,
        amount_nusd=found.amount_nusd,
        reason=f"code {found.hint} of batch {found.batch}",
        kind=Kind.REDEMPTION,
    )
