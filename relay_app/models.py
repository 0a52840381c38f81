"""Rows that say how requests were carried, and what changed in the configuration."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class SnapshotChange(models.Model):
    """One change of the configuration, for the relay processes to pick up.

    Written on commit, once per transaction and section. Processes tell new rows by
    their random `stamp`, never by a counter: a counter comes back after a restore.
    """

    stamp = models.CharField(max_length=32, unique=True)
    section = models.CharField(max_length=16)
    # Primary keys of the changed rows; None: too many, read the whole section.
    row_ids = models.JSONField(null=True)
    # The database's clock, so that processes on several machines agree.
    changed_at = models.DateTimeField(db_default=Now(), db_index=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.section} {self.stamp}"


class RequestLog(models.Model):
    """One request of a client and how it ended. Written in batches after the answer.

    Names are copies, not foreign keys: a log outlives the rows that it speaks of.
    """

    request_id = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(db_index=True)
    user_name = models.CharField(max_length=150, blank=True)
    token_id = models.BigIntegerField(null=True, db_index=True)
    token_name = models.CharField(max_length=100, blank=True)
    group = models.CharField(max_length=100, blank=True)
    endpoint = models.CharField(max_length=100)
    request_model = models.CharField(max_length=200, blank=True, db_index=True)
    response_model = models.CharField(max_length=200, blank=True)
    is_stream = models.BooleanField(default=False)
    status = models.PositiveSmallIntegerField(db_index=True)
    outcome = models.CharField(
        max_length=32, help_text="ok, or the class or code of what went wrong."
    )
    message = models.CharField(max_length=200, blank=True)
    chain = models.CharField(
        max_length=200, blank=True, help_text="Channel ids in order, e.g. 5->12->8."
    )
    attempt_count = models.PositiveSmallIntegerField(default=0)
    stop_reason = models.CharField(
        max_length=64,
        blank=True,
        db_default="",
        help_text="Why no further attempt followed the last one.",
    )
    duration_ms = models.PositiveIntegerField(default=0)
    ttft_ms = models.PositiveIntegerField(null=True)
    input_tokens = models.PositiveBigIntegerField(null=True)
    output_tokens = models.PositiveBigIntegerField(null=True)
    client_ip = models.CharField(max_length=45, blank=True)
    cost_nusd = models.BigIntegerField(
        "cost", null=True, help_text="Nano-dollars that were charged; empty: nothing was due."
    )
    billing = models.CharField(
        max_length=16,
        blank=True,
        db_default="",
        help_text="settled, refunded, free, unpriced or fee.",
    )
    billed_model = models.CharField(max_length=200, blank=True, db_default="")

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.request_id


class Attempt(models.Model):
    """One send to one channel within a request."""

    request = models.ForeignKey(RequestLog, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    channel_id = models.BigIntegerField(db_index=True)
    channel_name = models.CharField(max_length=100)
    key_id = models.BigIntegerField(null=True)
    status = models.PositiveSmallIntegerField(null=True)
    failure_class = models.CharField(max_length=32, blank=True)
    upstream_type = models.CharField(max_length=100, blank=True)
    upstream_code = models.CharField(max_length=100, blank=True)
    upstream_request_id = models.CharField(max_length=100, blank=True)
    message = models.CharField(max_length=200, blank=True)
    upstream_model = models.CharField(max_length=200, blank=True, db_default="")
    wait_ms = models.PositiveIntegerField(default=0, help_text="Waited before this attempt.")
    duration_ms = models.PositiveIntegerField(default=0)
    decision = models.CharField(
        max_length=64, blank=True, help_text="Why the request went on or ended here."
    )

    class Meta:
        ordering = ["request", "number"]
        constraints = [
            models.UniqueConstraint(fields=["request", "number"], name="attempt_number_once")
        ]

    def __str__(self) -> str:
        return f"{self.number}: {self.channel_name}"
