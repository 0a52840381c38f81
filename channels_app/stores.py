"""The state store: what relay processes share through Redis or Valkey. Sole user of its client.

Decisions are scripts (`lua/`), each atomic and on the store's own clock. All keys begin with
`relay:`. Whoever calls decides what happens while the store is away: calls raise within
`COMMAND_S`, and are never repeated here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any, TypeAlias

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from channels_app.core.rates import (
    LIMITS,
    SLOT_WAIT_MS,
    WINDOW_MS,
    Answer,
    Claim,
    End,
    Granted,
    Meter,
    Refused,
    Renew,
    Room,
    Take,
)

# Connecting and answering together. Slower than this, counting alone serves clients better.
COMMAND_S = 0.25

PREFIX = "relay:"
# As long as OpenAI keeps a response that is stored.
BINDING_S = 30 * 86_400
CHECK_KEY = f"{PREFIX}check"

LUA = Path(__file__).parent / "lua"

# What a store that is away, or the way to it, raises.
StoreError = (RedisError, OSError, TimeoutError)

Command: TypeAlias = Take | End | Renew


def connect(url: str) -> redis.Redis:
    """Return a client that waits `COMMAND_S` at most and repeats nothing; connects when used."""
    return redis.Redis.from_url(
        url,
        socket_timeout=COMMAND_S,
        socket_connect_timeout=COMMAND_S,
        retry=Retry(NoBackoff(), 0),
    )


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the name under which the store keeps it."""

    text: str
    sha: str

    @classmethod
    def read(cls, name: str) -> Script:
        """Return the script in `lua/NAME.lua`."""
        text = (LUA / f"{name}.lua").read_text()
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


RATES_TAKE = Script.read("rates_take")
RATES_END = Script.read("rates_end")
RATES_RENEW = Script.read("rates_renew")
SCRIPTS = (RATES_TAKE, RATES_END, RATES_RENEW)


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a script."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | int]


async def run_scripts(client: redis.Redis, calls: Sequence[Call]) -> list[Any]:
    """Return the replies of `calls`, sent in order in one round trip.

    Raises RedisError, OSError or TimeoutError when any of them failed; the others may have run.
    """
    async with asyncio.timeout(COMMAND_S):
        replies = await _send(client, calls)
        missing = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:  # a fresh store; it gets all scripts, or the next call would change places
            for script in SCRIPTS:
                await client.script_load(script.text)
            again = await _send(client, [calls[at] for at in missing])
            for at, reply in zip(missing, again, strict=True):
                replies[at] = reply
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


async def _send(client: redis.Redis, calls: Sequence[Call]) -> list[Any]:
    async with client.pipeline(transaction=False) as pipe:
        for call in calls:
            pipe.evalsha(call.script.sha, len(call.keys), *call.keys, *call.arguments)
        return await pipe.execute(raise_on_error=False)


class RateStore:
    """The shared count of rate limits; the rules are those of `core.rates.Rates`.

    `now_ms` stands in for the store's clock in tests that compare the two.
    """

    def __init__(self, client: redis.Redis, *, lease_ms: int) -> None:
        self._client = client
        self._lease_ms = lease_ms

    async def run(
        self, commands: Sequence[Command], *, now_ms: int | None = None
    ) -> list[Answer | None]:
        """Return the answer to each `Take`, None to the others; all in one round trip.

        Raises like `run_scripts`; whether the commands were carried out is then not known.
        """
        now = "" if now_ms is None else now_ms
        replies = await run_scripts(self._client, [self._call(each, now) for each in commands])
        return [
            _answer(command, reply) if isinstance(command, Take) else None
            for command, reply in zip(commands, replies, strict=True)
        ]

    async def check(self) -> None:
        """Return when the store takes writes, which one that is full or a replica does not."""
        async with asyncio.timeout(COMMAND_S):
            await self._client.set(CHECK_KEY, 1, px=1000)

    async def disconnect(self) -> None:
        """Drop connections; late replies on them must not be read as answers to others."""
        await self._client.connection_pool.disconnect()

    def _call(self, command: Command, now: str | int) -> Call:
        if isinstance(command, Take):
            options = (now, command.hold_id, self._lease_ms, WINDOW_MS, SLOT_WAIT_MS)
            limits = [limit for meter in command.meters for limit in _limits(meter)]
            return Call(RATES_TAKE, _keys(command.meters), (*options, *limits))
        if isinstance(command, End):
            taken = (command.hold_id, command.at_ms // 1000, command.requests)
            return Call(RATES_END, _keys(command.meters), (*taken, *command.token_changes))
        hold_ids = [hold_id for hold_id, _ in command.leases]
        slots = [slots_key(name) for _, name in command.leases]
        return Call(RATES_RENEW, slots, (now, self._lease_ms, *hold_ids))


class BindingStore:
    """Which channel made which response, by wallet; rows are small JSON objects."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    async def put(self, user_id: int, response_id: str, row: Mapping[str, Any]) -> None:
        """Keep `row` for `BINDING_S`. Raises a `StoreError`."""
        async with asyncio.timeout(COMMAND_S):
            key = binding_key(user_id, response_id)
            await self._client.set(key, json.dumps(row), ex=BINDING_S)

    async def get(self, user_id: int, response_id: str) -> dict[str, Any] | None:
        """Return the row, or None. Raises a `StoreError`."""
        async with asyncio.timeout(COMMAND_S):
            raw = await self._client.get(binding_key(user_id, response_id))
        return None if raw is None else json.loads(raw)


def binding_key(user_id: int, response_id: str) -> str:
    """Return the key of a binding; ids are hashed, they may be of any length."""
    return f"{PREFIX}response:{user_id}:{sha256(response_id.encode()).hexdigest()}"


def window_key(name: str) -> str:
    """Return the key of a meter's requests and tokens of the last minute."""
    return f"{PREFIX}window:{name}"


def slots_key(name: str) -> str:
    """Return the key of a meter's leases."""
    return f"{PREFIX}slots:{name}"


def _keys(meters: Claim) -> list[str]:
    return [key for meter in meters for key in (window_key(meter.name), slots_key(meter.name))]


def _limits(meter: Meter) -> tuple[int, int, int, int]:
    limits = meter.limits
    return limits.rpm, limits.tpm, limits.concurrency, meter.reserved


def _answer(take: Take, reply: list[int]) -> Answer:
    """Read the reply of rates_take.lua."""
    is_granted, at_ms, meter, limit, wait_ms, *numbers = reply
    rooms = tuple(_room(numbers[at : at + 4]) for at in range(0, len(numbers), 4))
    if is_granted:
        return Granted(at_ms=at_ms, rooms=rooms)
    return Refused(
        meter=take.meters[meter - 1].name, limit=LIMITS[limit - 1], wait_ms=wait_ms, rooms=rooms
    )


def _room(numbers: list[int]) -> Room:
    requests, tokens, slots = (None if number < 0 else number for number in numbers[:3])
    return Room(requests=requests, tokens=tokens, slots=slots, reset_ms=numbers[3])
