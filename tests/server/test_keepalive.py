"""Option KeepaliveBeforeCommit: comments while a stream waits for its first content."""

from __future__ import annotations

import asyncio
import time

import pytest

from relay_app import keepalive, views
from relay_app.attempt import Answer
from tests.support.upstream import Gate, answer, chat, chunk, error, held, stream, whole_stream

WHOLE = whole_stream("Hel", "lo")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(keepalive, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(views, "KEEPALIVE_S", 0.05)


@pytest.fixture
def ask(world):
    """Return a function that asks for a stream whose upstream answers after some comments."""

    def ask(action, *, wait_s=0.2, **options):
        gate = Gate()
        world.channel("a", held(action, gate))
        world.options(**{"KeepaliveBeforeCommit": True, **options})
        client = world.ready()
        body = {"model": "m", "messages": [], "stream": True}
        with client.http.stream("POST", "/v1/chat/completions", json=body) as response:
            time.sleep(wait_s)
            for _ in range(5):
                gate.open()
            return response, response.read()

    return ask


def test_comments_come_first_and_then_the_answer(world, ask):
    response, body = ask(stream(WHOLE))

    assert response.status_code == 200
    comments, answered = body.count(keepalive.COMMENT), body.replace(keepalive.COMMENT, b"")
    assert comments >= 2
    assert answered == b"".join(WHOLE)
    assert world.log(response.headers["x-request-id"]).outcome == "ok"


def test_an_error_comes_as_an_event(world, ask):
    response, body = ask(error(503, "down"))

    assert response.status_code == 200
    assert b"down" in body
    assert b"[DONE]" not in body
    assert body.endswith(b"\n\n")
    assert world.log(response.headers["x-request-id"]).outcome == "SERVER"


def test_an_answer_without_a_stream_comes_as_an_error(world, ask):
    from billing_app.models import LedgerEntry, Price, User
    from billing_app.services import wallet_credit
    from billing_app.tasks import refund_due_sessions

    Price.objects.create(model="m", input=1, output=1)
    alice = User.objects.get(username="alice")
    wallet_credit(user_id=alice.pk, amount_nusd=10**9, reason="test")

    response, body = ask(answer(200, chat()), TrustQuota="0")

    assert b"upstream_unreachable" in body
    log = world.log(response.headers["x-request-id"])
    assert "without a stream" in log.message
    assert log.billing == "refunded"
    refund_due_sessions()
    kinds = LedgerEntry.objects.order_by("pk").values_list("kind", flat=True)
    assert list(kinds) == ["top_up", "reserve", "refund"]


async def test_an_answer_that_comes_as_the_client_leaves_is_closed():
    closed, left = [], []

    class Stream:
        async def aclose(self):
            closed.append(True)

    async def work():
        return Answer(status=200, content_type="text/event-stream", stream=Stream())

    def unused(*_):
        raise AssertionError

    late = keepalive.LateStream(
        asyncio.ensure_future(work()),
        respond=unused,
        fail=unused,
        abandoned=lambda: left.append(True),
    )
    pieces = late.pieces()
    assert await anext(pieces) == keepalive.COMMENT
    await asyncio.sleep(0)
    await pieces.aclose()

    await late.aclose()

    assert (closed, left) == ([True], [True])


def test_an_empty_stream_is_passed_on(world, ask):
    response, body = ask(stream([chunk(role=True), chunk(finish="stop")]))

    assert b"[DONE]" in body
    assert world.log(response.headers["x-request-id"]).outcome == "ok"


def test_what_comes_in_time_has_its_own_status(world):
    world.channel("a", error(503, "down"))
    world.options(KeepaliveBeforeCommit=True)

    assert world.ready().chat(stream=True).status_code == 503


def test_a_hang_up_while_waiting_ends_the_attempt(world):
    world.channel("a", held(stream(WHOLE), Gate()))
    world.options(KeepaliveBeforeCommit=True)
    client = world.ready()
    body = {"model": "m", "messages": [], "stream": True}

    with client.http.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_raw())

    assert world.upstream.seen[0].closed.wait(1)
    assert world.log(response.headers["x-request-id"]).outcome == "ABORTED"


def test_without_the_option_nothing_comes_before_the_answer(world):
    world.channel("a", stream(WHOLE, delay_s=0.2))

    assert world.ready().chat(stream=True).content == b"".join(WHOLE)
