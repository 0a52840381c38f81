"""Rows that say who asks: users and their tokens."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models
from simple_history.models import HistoricalRecords

from billing_app.history import UserHistory


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
