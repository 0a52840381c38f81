"""Rows that say where a request may go: groups, channels, their keys, and options."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models
from simple_history.models import HistoricalRecords

from channels_app.fields import EncryptedTextField
from channels_app.history import ChannelHistory
from channels_app.options import OptionError, option_spec


class Status(models.TextChoices):
    """Whether a channel or key is in use, and who decided it."""

    ENABLED = "enabled", "Enabled"
    DISABLED = "disabled", "Disabled by hand"
    AUTO_DISABLED = "auto_disabled", "Disabled automatically"


class Group(models.Model):
    """A named set of channels. Tokens store its name."""

    name = models.CharField(max_length=100, unique=True)
    ratio = models.DecimalField(
        max_digits=16,
        decimal_places=6,
        default=1,
        help_text="What requests of this group cost, as a multiple of the price.",
    )
    user_groups = models.JSONField(
        "open to",
        default=list,
        blank=True,
        help_text='Groups of users whose tokens may use it, e.g. ["vip"]; empty: everybody.',
    )
    history = HistoricalRecords()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Channel(models.Model):
    """One upstream account: a provider type, an address, keys, models and groups.

    Operators edit rows in the admin or by `apply_config`. The relay never reads this
    table while serving a request: it decides on the snapshot, which follows each save.
    """

    class KeyMode(models.TextChoices):
        """How the key of an attempt is chosen."""

        RANDOM = "random", "Random"
        POLLING = "polling", "In turn"

    class HealthScope(models.TextChoices):
        """What one circuit of the channel stands for."""

        CHANNEL = "channel", "The channel"
        MODEL = "model", "Each of its models"

    name = models.CharField(max_length=100, unique=True)
    provider = models.CharField(
        "type", max_length=32, help_text="The dialect that the upstream speaks."
    )
    base_url = models.CharField(
        max_length=300,
        blank=True,
        help_text="Ends where the provider's own does, e.g. https://host/v1.",
    )
    model_names = models.JSONField(
        "models",
        default=list,
        blank=True,
        help_text='JSON list of model names; a trailing * matches any ending: ["a-*"].',
    )
    groups = models.ManyToManyField(Group, related_name="channels", blank=True)
    priority = models.IntegerField(
        default=0, help_text="Higher is tried first; equal ones form a tier."
    )
    weight = models.PositiveIntegerField(
        default=0, help_text="Share of the traffic within the tier."
    )
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.ENABLED)
    status_reason = models.CharField(max_length=200, blank=True, default="")
    status_changed_at = models.DateTimeField(null=True, blank=True)
    auto_ban = models.BooleanField(
        "automatic disabling",
        default=True,
        help_text="May be disabled automatically when its account fails.",
    )
    key_mode = models.CharField(max_length=16, choices=KeyMode.choices, default=KeyMode.RANDOM)
    timeouts = models.JSONField(
        default=dict,
        blank=True,
        help_text="Seconds for any of connect, first_byte, first_token, idle, "
        "response, total; what is missing takes the option, 0 is no limit.",
    )
    status_code_mapping = models.JSONField(
        default=dict,
        blank=True,
        help_text='Upstream statuses to treat as others (400-599): {"400": 500}.',
    )
    model_mapping = models.JSONField(
        default=dict,
        blank=True,
        help_text='Names that the upstream has for models: {"gpt-4o": "gpt-4o-2024-11-20"}.',
    )
    param_override = models.JSONField(
        default=dict,
        blank=True,
        help_text='Parameters to set in each request: {"temperature": 0}, or '
        '{"operations": [...]}.',
    )
    header_override = models.JSONField(
        default=dict,
        blank=True,
        help_text="Headers to send upstream; values may hold {api_key} and {client_header:NAME}.",
    )
    proxy = EncryptedTextField(
        blank=True,
        default="",
        help_text="Reach the upstream through it: http://user:pass@host:port.",
    )
    limits = models.JSONField(
        default=dict,
        blank=True,
        help_text="What the account allows: any of rpm, tpm (requests, tokens a minute), "
        "concurrency; a full channel is passed over.",
    )
    fault_domain = models.CharField(
        max_length=100,
        blank=True,
        default="",
        help_text="Channels of one name here fail together and share one circuit.",
    )
    health_scope = models.CharField(
        max_length=16, choices=HealthScope.choices, default=HealthScope.CHANNEL
    )
    supports_prefill = models.BooleanField(
        null=True,
        blank=True,
        help_text="Goes on from an answer that was begun; unknown: by the model's name.",
    )
    bill_upstream_model = models.BooleanField(
        default=False, help_text="Bill the name that model_mapping gives, not the one asked for."
    )
    settings = models.JSONField(
        default=dict, blank=True, help_text="What the provider type needs besides."
    )
    test_model = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    # These may hold credentials, which history would keep for ever.
    history = ChannelHistory(
        excluded_fields=["settings", "header_override", "proxy"], m2m_fields=("groups",)
    )

    class Meta:
        ordering = ["-priority", "name"]

    def __str__(self) -> str:
        return self.name


class ChannelKey(models.Model):
    """One credential of a channel, encrypted at rest and never shown again in full."""

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="keys")
    value = EncryptedTextField()
    # SHA-256 of the value: keys are matched by it, since ciphertexts differ each time.
    value_hash = models.CharField(max_length=64, editable=False)
    hint = models.CharField(max_length=16, editable=False)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.ENABLED)
    status_reason = models.CharField(max_length=200, blank=True, default="")
    limits = models.JSONField(
        default=dict,
        blank=True,
        help_text="What this key allows: any of rpm, tpm (requests, tokens a minute), concurrency.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    history = HistoricalRecords(excluded_fields=["value", "value_hash"])

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["channel", "value_hash"], name="channel_key_once")
        ]

    def __str__(self) -> str:
        return self.hint


class Option(models.Model):
    """An option whose value differs from its default in `channels_app.options`."""

    name = models.CharField(max_length=64, unique=True)
    value = models.JSONField()
    updated_at = models.DateTimeField(auto_now=True)
    history = HistoricalRecords(excluded_fields=["updated_at"])

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuse unknown names and values out of range; keep the tidy form."""
        try:
            self.value = option_spec(self.name).stored(self.value)
        except OptionError as error:
            raise ValidationError(str(error)) from None
