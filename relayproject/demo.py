"""What `serve --demo` sets up: an admin, two simulated channels and a token that works.

The first channel fails one time in three, so that the first minutes show what a relay is
for. Made once: a second start leaves everything as it is, and what was deleted stays away.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction

from billing_app.core.money import NANO
from billing_app.models import Price, Token, User
from billing_app.price_list import prices_load
from billing_app.services import key_hash, new_key, token_create
from channels_app.models import Channel, Group
from channels_app.presets import PRESETS
from channels_app.services import options_set
from relayproject import secret_store

MODEL = "demo-chat"
MODELS = (MODEL, "sim*")
DEMO_PRICE = {"input": "2.5", "cached_input": "1.25", "output": "10"}  # USD per million tokens
BALANCE_NUSD = 100 * NANO
PRESET = "resilient"
ADMIN = "admin"
OWNER = "demo"
CHANNELS: tuple[tuple[str, int, dict[str, str]], ...] = (
    # Asks for more patience than the relay has, so that it goes on to the other channel at once.
    ("demo-primary", 100, {"behaviour": "status-503-every-3-retryafter-5"}),
    ("demo-backup", 50, {}),
)
MADE_FILE = "demo_made"  # in DATA_DIR, once the data was there


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoInfo:
    """What to tell the operator; `is_whole`: token and channels are there, so the line works."""

    address: str
    token: str
    admin: str
    is_new: bool
    is_whole: bool

    @property
    def curl(self) -> str:
        """Return a command line that asks the demo model."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
        words = ["curl", "-i", f"{self.address}/v1/chat/completions"]
        words += ["-H", f"Authorization: Bearer {self.token}"]
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return shlex.join(words)

    def __str__(self) -> str:
        lines = [f"  demo data {'made' if self.is_new else 'found'}"]
        account = f"  admin: {self.address}/admin/ user {self.admin}"
        if not self.is_new:
            account += f" (password lost? .venv/bin/python manage.py changepassword {self.admin})"
        lines.append(account)
        if self.is_whole:
            lines += [
                "  ask it (one answer in three comes from demo-backup after demo-primary",
                "  failed: X-Relay-Attempts: 2):",
                f"  {self.curl}",
            ]
        else:
            lines.append("  some of it was deleted and stays so; a token: manage.py create_token")
        return "\n".join(lines)


def set_up(*, address: str, say: Callable[[str], None]) -> DemoInfo:
    """Make it in a database that never had it; `address` is where the relay will listen.

    `say` is told the password of a new account before the account can be used.
    """
    token = secret_store.read_or_create(settings.DATA_DIR / "demo_token", new_key)
    made_file = settings.DATA_DIR / MADE_FILE
    with transaction.atomic():
        admin, is_first = _admin(say)
        # The file remembers a demo that was deleted, unless the database is another, new one.
        is_known = made_file.exists() and not is_first
        is_new = not is_known and not User.objects.filter(username=OWNER).exists()
        if is_new:
            _make_demo(token)
    prices_load()
    made_file.touch()
    has_token = Token.objects.filter(key_hash=key_hash(token)).exists()
    left = Channel.objects.filter(name__in=[name for name, _, _ in CHANNELS]).count()
    is_whole = has_token and left == len(CHANNELS)
    return DemoInfo(address=address, token=token, admin=admin, is_new=is_new, is_whole=is_whole)


def _admin(say: Callable[[str], None]) -> tuple[str, bool]:
    """Return the name of the first administrator, and whether it was made just now."""
    present = User.objects.filter(is_superuser=True).order_by("pk").first()
    if present is not None:
        return present.username, False
    password = secrets.token_urlsafe(12)
    User.objects.create_superuser(ADMIN, password=password)
    # Before the commit: whatever interrupts here, no account is left whose password nobody saw.
    say(f"  user {ADMIN}, password {password} (shown only now; change it in the admin)")
    return ADMIN, True


def _make_demo(token: str) -> None:
    group, _ = Group.objects.get_or_create(name="default")
    for name, priority, behaviour in CHANNELS:
        channel, _ = Channel.objects.get_or_create(
            name=name,
            defaults={
                "provider": "simulated",
                "model_names": list(MODELS),
                "priority": priority,
                "settings": behaviour,
            },
        )
        channel.groups.add(group)
    options_set(values=PRESETS[PRESET])
    owner = User.objects.create(username=OWNER, opening_balance_nusd=BALANCE_NUSD)
    for model in MODELS:
        Price.objects.get_or_create(model=model, defaults=DEMO_PRICE)
    token_create(user=owner, name="demo", key=token)
