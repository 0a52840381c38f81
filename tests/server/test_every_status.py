"""Every HTTP status an upstream may answer with, in both dialects, through the real server.

The table here is written from the specification (01 section 5), apart from the relay's
own: which statuses are tried again, and what the client sees when none is left. Statuses
100-199 are interim answers that no HTTP client hands on; they are core tests.
"""

from __future__ import annotations

import pytest

from tests.support import anthropic
from tests.support.upstream import answer, error, raw

# AutomaticRetryStatusCodes: 100-199,300-399,401-407,409-499,500-503,505-523,525-599, and
# never 504 or 524. Of the answered ones this leaves out:
NOT_TRIED_AGAIN = {400, 408, 504, 524}
# HTTP has no room for a body in these.
BODILESS = {204, 304}
DIALECTS = ["openai", "anthropic"]

STATUSES = [*range(300, 600), 600, 700, 999]
CHUNK = 60
CHUNKS = [STATUSES[i : i + CHUNK] for i in range(0, len(STATUSES), CHUNK)]


def seen_status(status: int) -> int:
    """Return what the client is told: the same, but for those that are no HTTP statuses of
    an answer, and for 304, which could not say what went wrong."""
    return status if 300 <= status <= 599 and status != 304 else 502


def attempts_of(status: int) -> int:
    return 1 if status in NOT_TRIED_AGAIN else 2


def fault(dialect: str, status: int):
    if status in BODILESS:
        return answer(status, b"")
    if dialect == "anthropic":
        return anthropic.error(status, "what happened")
    return error(status, "what happened")


def two_channels(world, dialect, first, second=None):
    world.channel("a", first, provider=dialect, priority=2)
    world.channel("b", second or first, provider=dialect, priority=1)
    world.options(RetryTimes=1)
    client = world.ready()
    return client.messages if dialect == "anthropic" else client.chat


def script(world, action) -> None:
    world.upstream.seen.clear()
    for name in ("a", "b"):
        world.upstream.script(name, action)


@pytest.mark.parametrize("statuses", CHUNKS, ids=lambda part: f"{part[0]}-{part[-1]}")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_status_is_tried_again_or_told(world, dialect, is_stream, statuses):
    ask = two_channels(world, dialect, fault(dialect, 500))

    for status in statuses:
        script(world, fault(dialect, status))

        response = ask(stream=is_stream)

        assert response.status_code == seen_status(status), status
        assert world.upstream.names() == ["a", "b"][: attempts_of(status)], status
        assert response.headers["x-relay-attempts"] == str(attempts_of(status))
        assert response.headers["content-type"] == "application/json"
        says = f"the upstream answered {status} without" if status == 304 else "what happened"
        message = response.json()["error"]["message"]
        assert message.startswith(says), status
        assert message.endswith(f"(request id: {response.headers['x-request-id']})")
        assert (response.json().get("type") == "error") == (dialect == "anthropic")


SUCCESSES = [status for status in range(200, 300) if status not in (204, 205)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_2xx_with_a_valid_body_is_a_success(world, dialect):
    from tests.support.upstream import chat

    good = anthropic.message() if dialect == "anthropic" else chat()
    ask = two_channels(world, dialect, answer(200, good))

    for status in SUCCESSES:
        script(world, answer(status, good))

        response = ask()

        assert (response.status_code, response.json()) == (status, good)
        assert world.upstream.names() == ["a"], status


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_2xx_that_is_only_an_error_object_is_a_failure(world, dialect):
    """Its status is the one of its class; here 429, which is tried again."""
    ask = two_channels(world, dialect, fault(dialect, 500))

    for status in SUCCESSES:
        script(world, answer(status, anthropic.problem("busy", type_="rate_limit_error")))

        response = ask()

        assert response.status_code == 429
        assert world.upstream.names() == ["a", "b"], status


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_object_in_a_200_has_the_status_that_it_names(world, dialect):
    """A 2xx is no status of an error: as if none were named, so by its class, here 502."""
    ask = two_channels(world, dialect, fault(dialect, 500))

    for named in [*range(100, 600, 7), 400, 408, 504, 524, 429, 503]:
        script(world, answer(200, {"error": {"message": "x", "code": named}}))

        response = ask()

        status = 502 if 200 <= named <= 299 else named
        assert len(world.upstream.seen) == attempts_of(status), named
        assert response.status_code == seen_status(status), named


@pytest.mark.parametrize("status", [200, 201, 204, 205])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_2xx_without_a_body_is_a_failure_of_the_upstream(world, dialect, is_stream, status):
    ask = two_channels(world, dialect, answer(status, b""))

    response = ask(stream=is_stream)

    assert response.status_code == 502
    assert world.upstream.names() == ["a", "b"]
    assert response.json()["error"]["message"].startswith("the upstream answered")


@pytest.mark.parametrize("line", [b"HTTP/1.1 99 x", b"HTTP/1.1 1000 x", b"HTTP/1.1 abc x", b"junk"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_no_http_status_is_no_answer(world, dialect, line):
    broken = raw(line + b"\r\nContent-Length: 0\r\n\r\n")
    ask = two_channels(world, dialect, broken)

    response = ask()

    assert response.status_code == 502
    assert [seen.name for seen in world.upstream.seen] == ["a", "b"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_interim_answers_are_passed_over(world, dialect):
    """100-199 are followed by the real answer on the same connection."""
    interim = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
    body = b'{"error": {"message": "no", "type": "x"}}'
    real = b"HTTP/1.1 418 Teapot\r\nContent-Length: %d\r\n\r\n" % len(body)
    ask = two_channels(world, dialect, raw(interim + real + body))

    response = ask()

    assert response.status_code == 418
    assert response.json()["error"]["message"].startswith("no (request id: ")


@pytest.mark.parametrize(
    ("mapping", "raw_status", "told"),
    [
        ({"400": 500}, 400, 500),
        ({"500": 400}, 500, 400),
        ({"429": 504}, 429, 504),
        ({"504": 503}, 504, 503),
        ({"302": 404}, 302, 404),
        ({"999": 429}, 999, 429),
        ({"500": 400}, 501, 501),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_mapped_status_decides_and_is_told(world, dialect, mapping, raw_status, told):
    for name, priority in (("a", 2), ("b", 1)):
        world.channel(
            name,
            fault(dialect, raw_status),
            provider=dialect,
            priority=priority,
            status_code_mapping=mapping,
        )
    world.options(RetryTimes=1)
    client = world.ready()

    response = client.messages() if dialect == "anthropic" else client.chat()

    assert response.status_code == told
    assert len(world.upstream.seen) == attempts_of(told)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, anthropic.problem("Your credit balance is too low", type_="invalid_request_error")),
        (400, {"error": {"message": "API key not valid. Pass another."}}),
        (408, {"error": {"message": "x", "code": "insufficient_quota"}}),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fault_of_the_account_is_tried_again_under_any_status(world, dialect, status, body):
    ask = two_channels(world, dialect, answer(status, body))

    response = ask()

    assert len(world.upstream.seen) == 2
    assert response.status_code == status


@pytest.mark.parametrize("dialect", DIALECTS)
def test_refused_content_is_not_tried_again(world, dialect):
    refused = {"error": {"message": "x", "code": "content_filter"}}
    ask = two_channels(world, dialect, answer(500, refused))

    assert ask().status_code == 500
    assert world.upstream.names() == ["a"]


@pytest.mark.parametrize("listed", ["400", "", "504,524"])
def test_the_option_decides_but_not_about_gateway_timeouts(world, listed):
    ask = two_channels(world, "openai", error(500))
    world.options(AutomaticRetryStatusCodes=listed)
    world.ready()

    for status, is_tried_again in ((400, listed == "400"), (500, False), (504, False)):
        script(world, error(status))

        assert ask().status_code == status
        assert len(world.upstream.seen) == (2 if is_tried_again else 1), status
