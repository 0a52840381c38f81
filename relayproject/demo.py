"""What `serve --demo` sets up: an admin, two simulated channels and a token that works.

The first channel fails one time in three, so that the first minutes show what a relay is
for. Made once: a second start finds it and leaves everything as it is.
"""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction

from billing_app.models import Token, User
from billing_app.services import key_hash, new_key, token_create
from channels_app.models import Channel, Group
from channels_app.services import options_set
from relayproject import secret_store

MODEL = "demo-chat"
RETRY_TIMES = 3
ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoInfo:
    """What to tell the operator; `password` only when the account was just made."""

    address: str
    token: str
    password: str | None
    is_new: bool

    @property
    def curl(self) -> str:
        """Return a command line that asks the demo model."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
        words = ["curl", "-i", f"{self.address}/v1/chat/completions"]
        words += ["-H", f"Authorization: Bearer {self.token}"]
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return shlex.join(words)

    def __str__(self) -> str:
        account = f"user {ADMIN}"
        if self.password:
            account += f", password {self.password} (shown only now; change it there)"
        lines = [
            f"  demo data {'made' if self.is_new else 'found'}",
            f"  admin: {self.address}/admin/ {account}",
            "  ask it (one answer in three comes from demo-backup after demo-primary",
            "  failed: X-Relay-Attempts: 2):",
            f"  {self.curl}",
        ]
        return "\n".join(lines)


def set_up(*, address: str) -> DemoInfo:
    """Make what is missing and return it; `address` is where the relay will listen."""
    token = secret_store.read_or_create(settings.DATA_DIR / "demo_token", new_key)
    with transaction.atomic():
        password = _make_admin()
        is_new = not Token.objects.filter(key_hash=key_hash(token)).exists()
        if is_new:
            _make_demo(token)
    return DemoInfo(address=address, token=token, password=password, is_new=is_new)


def _make_admin() -> str | None:
    """Return the password of a new first account, or None if there is one already."""
    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(12)
    User.objects.create_superuser(ADMIN, password=password)
    return password


def _make_demo(token: str) -> None:
    group, _ = Group.objects.get_or_create(name="default")
    channels: tuple[tuple[str, int, dict[str, str]], ...] = (
        ("demo-primary", 100, {"behaviour": "status-503-every-3"}),
        ("demo-backup", 50, {}),
    )
    for name, priority, behaviour in channels:
        channel, _ = Channel.objects.get_or_create(
            name=name,
            defaults={
                "provider": "simulated",
                "model_names": [MODEL, "sim*"],
                "priority": priority,
                "settings": behaviour,
            },
        )
        channel.groups.add(group)
    options_set(values={"RetryTimes": RETRY_TIMES})
    owner, _ = User.objects.get_or_create(username="demo", defaults={"is_active": True})
    Token.objects.filter(user=owner, name="demo").delete()
    token_create(user=owner, name="demo", key=token)
