"""Rows that say who asks: users and their tokens."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AbstractUser
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models, transaction
from simple_history.models import HistoricalRecords

from billing_app.history import UserHistory

TOKEN_PRICES = (
    "input",
    "cached_input",
    "cache_write",
    "cache_write_1h",
    "output",
    "reasoning_output",
    "image_input",
    "audio_input",
    "audio_output",
)
OTHER_PRICES = ("per_call", "per_image", "per_second")
# A price has one of these: what has others alone would serve for nothing.
MAIN_PRICES = ("input", "output", *OTHER_PRICES)


class User(AbstractUser):
    """An account: an operator of the admin (`is_staff`), an owner of tokens, or both."""

    group = models.CharField(
        max_length=100,
        default="default",
        help_text="Group of channels for tokens that name none.",
    )
    opening_balance_nusd = models.BigIntegerField(
        "opening balance",
        default=0,
        help_text="Nano-dollars that the account starts with.",
    )
    history = UserHistory(excluded_fields=["password", "last_login"])

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the account; a new one gets its wallet, with the opening balance paid in."""
        is_new = self._state.adding
        with transaction.atomic(using=kwargs.get("using")):
            super().save(*args, **kwargs)
            if is_new:
                open_wallets([self])


def _price(help_text: str, verbose_name: str) -> Any:
    return models.DecimalField(
        verbose_name,
        max_digits=16,
        decimal_places=6,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text=help_text,
    )


class Price(models.Model):
    """What a model costs: USD per million tokens, or per call; pictures and seconds beside it."""

    model = models.CharField(
        max_length=200,
        unique=True,
        help_text="A name as clients send it, or a beginning and *, e.g. gpt-4o*.",
    )
    input = _price("USD per million tokens of prompt. Empty: the prompt costs nothing.", "input")
    cached_input = _price("Of the prompt, read from a cache. Empty: as input.", "cached input")
    cache_write = _price("Written to a cache for 5 minutes. Empty: as input.", "cache write")
    cache_write_1h = _price(
        "Written to a cache for an hour. Empty: as cache write.", "cache write, 1 h"
    )
    output = _price(
        "USD per million tokens that are generated. Empty: they cost nothing, which is fine for"
        " embeddings.",
        "output",
    )
    reasoning_output = _price("Of the output, reasoning. Empty: as output.", "reasoning")
    image_input = _price("Of the prompt, pictures. Empty: as input.", "image input")
    audio_input = _price("Of the prompt, sound. Empty: as input.", "audio input")
    audio_output = _price("Of the output, sound. Empty: as output.", "audio output")
    per_call = _price("USD per request, instead of prices per token.", "per call")
    per_image = _price("USD per picture that is made.", "per image")
    per_second = _price("USD per second, of tasks.", "per second")
    # What the bundled list said when it was loaded; a row that differs was edited.
    bundled = models.JSONField(null=True, blank=True, editable=False)
    history = HistoricalRecords(excluded_fields=["bundled"])

    class Meta:
        ordering = ["model"]

    def __str__(self) -> str:
        return self.model

    def clean(self) -> None:
        """Refuse names with a * inside, and prices that say nothing or two things."""
        if not self.model.strip() or "*" in self.model[:-1] or self.model != self.model.strip():
            raise ValidationError({"model": "a name, or a beginning and one * at its end"})
        by_token = [name for name in TOKEN_PRICES if getattr(self, name) is not None]
        if self.per_call is not None and by_token:
            raise ValidationError(
                {"per_call": f"a price per call leaves no room for {', '.join(by_token)}"}
            )
        if all(getattr(self, name) is None for name in MAIN_PRICES):
            *names, last = MAIN_PRICES
            raise ValidationError(f"give at least one of {', '.join(names)} and {last}; 0 is one")


class Token(models.Model):
    """A client's API key, stored as a hash; the key itself is shown once, when made."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    key_hash = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=16, editable=False)
    group = models.CharField(
        max_length=100, blank=True, default="", help_text="Empty: the user's group."
    )
    is_enabled = models.BooleanField("enabled", default=True)
    is_unlimited = models.BooleanField(
        "unlimited", default=True, help_text="Not limited beyond what its owner has."
    )
    model_names = models.JSONField(
        "models",
        default=list,
        blank=True,
        help_text='Models the token may use, e.g. ["gpt-4o-*"]; empty: all.',
    )
    allow_ips = models.JSONField(
        "allowed addresses",
        default=list,
        blank=True,
        help_text='Where it may be used from, e.g. ["203.0.113.7", "10.0.0.0/8"]; empty: anywhere.',
    )
    cross_group_retry = models.BooleanField(
        default=False,
        help_text="In group auto: go on to the next group when one has failed.",
    )
    specific_channel = models.CharField(
        max_length=100,
        blank=True,
        default="",
        help_text="Send everything to this channel alone, whatever its health; for staff only.",
    )
    limit_nusd = models.BigIntegerField(
        "limit",
        null=True,
        blank=True,
        help_text="The most that it may spend in all, unless it is unlimited.",
    )
    daily_limit_nusd = models.BigIntegerField(
        "daily limit", null=True, blank=True, help_text="The most in one day (UTC); empty: none."
    )
    monthly_limit_nusd = models.BigIntegerField(
        "monthly limit",
        null=True,
        blank=True,
        help_text="The most in one month (UTC); empty: none.",
    )
    rpm = models.PositiveIntegerField("requests a minute", default=0, help_text="0 is no limit.")
    tpm = models.PositiveIntegerField("tokens a minute", default=0, help_text="0 is no limit.")
    concurrency = models.PositiveIntegerField(
        "requests at once", default=0, help_text="0 is no limit."
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    history = HistoricalRecords(excluded_fields=["key_hash"])

    class Meta:
        ordering = ["user", "name"]
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="token_name_once")]

    def __str__(self) -> str:
        return self.name

    @property
    def total_limit_nusd(self) -> int | None:
        """Return what it may spend in all; None: no limit. Limited to nothing named is nothing."""
        return None if self.is_unlimited else self.limit_nusd or 0


from billing_app.ledger_models import (  # noqa: E402  # they refer to the models above
    BillingSession,
    LedgerEntry,
    LedgerLease,
    RedemptionCode,
    TokenAccount,
    Wallet,
    open_wallets,
)

__all__ = [
    "BillingSession",
    "LedgerEntry",
    "LedgerLease",
    "Price",
    "RedemptionCode",
    "Token",
    "TokenAccount",
    "User",
    "Wallet",
    "open_wallets",
]
