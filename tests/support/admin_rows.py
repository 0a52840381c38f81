"""Rows for the tests of the admin, and a client that is signed in."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from billing_app.models import Token, User
from billing_app.services import token_create
from channels_app.models import Channel, Group
from channels_app.services import channel_key_add
from relay_app.models import Attempt, RequestLog

PASSWORD = "correct horse"


def operator(name: str = "op", **fields: Any) -> User:
    """Return a superuser who can sign in with PASSWORD."""
    return User.objects.create_superuser(name, password=PASSWORD, **fields)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def channel(
    name: str = "c", *, group: Group | None = None, keys: int = 1, **fields: Any
) -> Channel:
    values = {"provider": "openai", "base_url": "https://host/v1", "model_names": ["m"], **fields}
    row = Channel.objects.create(name=name, **values)
    if group is not None:
        row.groups.add(group)
    for number in range(keys):
        channel_key_add(channel=row, value=f"sk-planted-{name}-{number}-0123456789")
    return row


def many_rows(count: int) -> None:
    """Make `count` of everything that has a list."""
    groups = [Group.objects.create(name=f"g{n:02}") for n in range(count)]
    for number, group in enumerate(groups):
        made = channel(f"c{number:02}", group=group, keys=2)
        made.groups.add(groups[0])
        user = User.objects.create_user(f"u{number:02}", group=group.name)
        token, _ = token_create(user=user, name="t")
        request_log(token=token, channels=[made, made])


def request_log(
    *, token: Token | None = None, channels: list[Channel] | None = None, **fields: Any
) -> RequestLog:
    """Return a request that failed on all `channels` but the last."""
    channels = channels or []
    values = {
        "request_id": uuid.uuid4().hex,
        "created_at": timezone.now() - timedelta(minutes=1),
        "user_name": token.user.username if token else "",
        "token_id": token.pk if token else None,
        "token_name": token.name if token else "",
        "group": "default",
        "endpoint": "POST /v1/chat/completions",
        "request_model": "m",
        "status": 200,
        "outcome": "ok",
        "chain": "->".join(str(c.pk) for c in channels),
        "attempt_count": len(channels),
        "duration_ms": 1500,
        **fields,
    }
    row = RequestLog.objects.create(**values)
    for number, used in enumerate(channels, start=1):
        is_last = number == len(channels)
        key = used.keys.first()
        Attempt.objects.create(
            request=row,
            number=number,
            channel_id=used.pk,
            channel_name=used.name,
            key_id=key.pk if key else None,
            status=200 if is_last else 503,
            failure_class="" if is_last else "SERVER",
            upstream_type="" if is_last else "server_error",
            upstream_code="" if is_last else "overloaded",
            upstream_request_id=f"req_upstream_{number}",
            message="" if is_last else "come back later",
            wait_ms=0 if number == 1 else 345,
            duration_ms=120,
            decision="answered" if is_last else "retryable status",
        )
    return row


def token_form(user: User, **fields: Any) -> dict[str, Any]:
    """Return what a browser posts for a new token."""
    return {
        "user": user.pk,
        "name": "t",
        "group": "",
        "model_names": "",
        "is_enabled": "on",
        "is_unlimited": "on",
        **fields,
    }
