"""What a request counts against: the limits of its token, and of each channel and key it asks."""

from __future__ import annotations

import math
from collections.abc import Mapping

from billing_app.core.types import TokenView
from billing_app.core.usage import Usage
from channels_app.core.rates import Claim, Limit, Meter, Refused, Room
from channels_app.core.types import RateLimits
from relay_app.core.attempts import Step

KEY = "key:"
# A slot is free when somebody's request ends, which may be at any moment.
SLOT_POLL_S = 0.25

WORDS = {
    Limit.RPM: "{} requests a minute",
    Limit.TPM: "{} tokens a minute",
    Limit.CONCURRENCY: "{} requests at once",
}


def token_claim(token: TokenView, *, tokens: int) -> Claim:
    """Return what a request of about so many tokens takes of its client's token."""
    limits = RateLimits(rpm=token.rpm, tpm=token.tpm, concurrency=token.concurrency)
    return (Meter(name=f"token:{token.id}", limits=limits, cost=tokens),)


def step_claim(step: Step, *, tokens: int) -> Claim:
    """Return what the step takes of its channel and key; empty if neither has limits."""
    meters = []
    if step.channel.rates is not None:
        name = f"channel:{step.channel.id}"
        meters.append(Meter(name=name, limits=step.channel.rates, cost=tokens))
    if step.key is not None and step.key.rates is not None:
        meters.append(Meter(name=f"{KEY}{step.key.id}", limits=step.key.rates, cost=tokens))
    return meters


def room_wait_s(refused: Refused) -> float:
    """Return in how many seconds it is worth asking again."""
    is_slot = refused.limit is Limit.CONCURRENCY
    return min(refused.wait_s, SLOT_POLL_S) if is_slot else refused.wait_s


def used_tokens(usage: Usage | None) -> int | None:
    """Return the tokens that an answer reported in all; None when it reported none."""
    if usage is None:
        return None
    return usage.input_tokens + usage.output_tokens


def limit_words(token: TokenView, limit: Limit) -> str:
    """Return the limit of a token in words: `60 requests a minute`."""
    return WORDS[limit].format(getattr(token, limit.value))


def size_words(token: TokenView, *, tokens: int, max_output_tokens: int) -> str:
    """Return what to tell of a request of about so many tokens: nothing unless it alone comes to
    more than its token may have in a minute."""
    if not token.tpm or tokens <= token.tpm:
        return ""
    advice = "lower max_tokens" if tokens - max_output_tokens < token.tpm else "shorten the prompt"
    return (
        f"; this request alone is counted as about {tokens} tokens, more than a whole minute"
        f" allows: {advice}"
    )


def rate_headers(token: TokenView, room: Room) -> Mapping[str, str]:
    """Return the headers that tell a client what its token has left."""
    found = {}
    reset = f"{math.ceil(room.reset_ms / 1000)}s"
    for name, limit, left in (
        ("requests", token.rpm, room.requests),
        ("tokens", token.tpm, room.tokens),
    ):
        if limit:
            found[f"x-ratelimit-limit-{name}"] = str(limit)
            found[f"x-ratelimit-remaining-{name}"] = str(left or 0)
            found[f"x-ratelimit-reset-{name}"] = reset
    return found
