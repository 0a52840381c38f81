"""Each way in which an upstream can fail a stream, told in every dialect (issue: streams).

Every scenario ends in the whole answer, or in one clear and bounded error of the dialect
without its success marker. What the upstream saw is checked too: how often, and when.
"""

from __future__ import annotations

import itertools
import time

import pytest

from tests.support.speakers import SPEAKERS
from tests.support.upstream import answer, raw, reset, silent, stream

TEXTS = ("Once ", "upon ", "a ", "time.")
TEXT = "".join(TEXTS)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.fixture(params=SPEAKERS, ids=lambda speaker: speaker.name)
def speaker(request):
    return request.param


@pytest.fixture
def tell(world, speaker):
    """Return a function that sets up the channels' scripts and asks once."""

    def tell(*primary, fallback=(), is_stream=True, **fields):
        world.options(RetryTimes=3, RetryStrategy="untried_first", SameChannelRetries=1)
        common = {"provider": speaker.provider, **fields}
        base = world.upstream.url("a")
        if speaker.provider == "gemini":
            base = base.removesuffix("/v1") + "/v1beta"
        world.channel("a", *primary, priority=9, base_url=base, **common)
        if fallback:
            world.channel("b", *fallback, base_url=base.replace("/a/", "/b/"), **common)
        return speaker.ask(world.ready(), is_stream=is_stream)

    return tell


def whole(speaker, **options):
    return stream(speaker.stream(*TEXTS), **options)


def assert_whole(speaker, response, text=TEXT):
    assert response.status_code == 200
    assert speaker.read(response.content) == text
    assert speaker.is_success(response.content)
    assert not speaker.is_error(response.content)
    assert response.content.replace(b"\r\n", b"\n").endswith(b"\n\n")


def assert_broken(speaker, response, text):
    """The client got `text`, then one error event, and nothing that looks like an end."""
    assert response.status_code == 200
    assert speaker.read(response.content) == text
    assert speaker.is_error(response.content)
    assert not speaker.is_success(response.content)
    assert response.content.endswith(b"\n\n")


# -- before the answer begins ------------------------------------------------------------


def test_one_429_with_retry_after(world, speaker, tell):
    limited = answer(429, {"error": {"message": "slow down"}}, headers={"Retry-After": "0.2"})

    assert_whole(speaker, tell(limited, whole(speaker)))

    first, second = world.upstream.seen
    assert second.at_s - first.at_s >= 0.2


@pytest.mark.parametrize("status", [429, 503])
def test_the_same_fault_for_ever(world, speaker, tell, status):
    response = tell(speaker.error(status, "the true reason"))

    assert response.status_code == status
    assert "the true reason" in response.text
    assert response.headers["content-type"].startswith("application/json")
    assert 2 <= len(world.upstream.seen) <= 5
    times_s = [seen.at_s for seen in world.upstream.seen]
    assert all(later - earlier >= 0.3 for earlier, later in itertools.pairwise(times_s))


def test_one_500(world, speaker, tell):
    assert_whole(speaker, tell(speaker.error(500, "oops"), whole(speaker)))


def test_a_reset_before_the_headers(world, speaker, tell):
    assert_whole(speaker, tell(reset(), reset(), whole(speaker)))


def test_a_silent_route_is_not_taken_twice(world, speaker, tell):
    response = tell(silent(), fallback=[whole(speaker)], timeouts={"first_byte": 0.2})

    assert_whole(speaker, response)
    assert world.upstream.names() == ["a", "b"]


def test_silence_everywhere_is_a_timeout(world, speaker, tell):
    response = tell(silent(), fallback=[silent()], timeouts={"first_byte": 0.2})

    assert response.status_code == 504
    assert world.upstream.names() == ["a", "b"]


def test_a_late_first_byte(world, speaker, tell):
    late = stream(speaker.stream(*TEXTS), delay_s=0.3)

    assert_whole(speaker, tell(late, timeouts={"first_byte": 5}))
    assert len(world.upstream.seen) == 1


def test_a_very_late_first_token(world, speaker, tell):
    begun = [*speaker.begin("m-upstream"), b": still here\n\n"]
    response = tell(
        stream(begun, end="stall"), fallback=[whole(speaker)], timeouts={"first_token": 0.3}
    )

    assert_whole(speaker, response)
    assert world.upstream.names() == ["a", "b"]


def test_an_error_event_first(world, speaker, tell):
    first = stream([speaker.error_event("overloaded")])

    assert_whole(speaker, tell(first, fallback=[whole(speaker)]))


def test_an_error_object_in_a_200(world, speaker, tell):
    fault = answer(200, {"error": {"message": "fault", "type": "server_error", "code": None}})

    assert_whole(speaker, tell(fault, fault, fallback=[whole(speaker)]))
    assert world.upstream.names() == ["a", "a", "b"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_empty_completion(world, speaker, tell, is_stream):
    if is_stream:
        empty, good = stream(speaker.empty()), whole(speaker)
    else:
        empty = answer(200, speaker.whole("", "m-upstream"))
        good = answer(200, speaker.whole(TEXT, "m-upstream"))

    response = tell(empty, fallback=[good], is_stream=is_stream)

    assert world.upstream.names() == ["a", "b"]
    if is_stream:
        assert_whole(speaker, response)
    else:
        assert TEXT in response.text


def test_an_empty_completion_everywhere_is_passed_on(world, speaker, tell):
    response = tell(stream(speaker.empty()), fallback=[stream(speaker.empty())])

    assert_whole(speaker, response, text="")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("prompt is too long: 250000 tokens > 200000 maximum", None),
        ("The response was filtered", "content_filter"),
    ],
)
def test_a_refusal_of_the_request_is_told_at_once(world, speaker, tell, message, code):
    response = tell(speaker.error(400, message, code), fallback=[whole(speaker)])

    assert response.status_code == 400
    assert message in response.text
    assert world.upstream.names() == ["a"]


def test_a_503_and_then_the_fallback(world, speaker, tell):
    """Model and usage are those of the channel that answered."""
    good = answer(200, speaker.whole(TEXT, "m-of-b"))
    response = tell(speaker.error(503, "down"), fallback=[good], is_stream=False)

    assert response.status_code == 200
    log = world.log(response.headers["x-request-id"])
    assert (log.response_model, log.output_tokens) == ("m-of-b", len(TEXT))


# -- after it has begun --------------------------------------------------------------------


@pytest.mark.parametrize("end", ["cut", "reset", "proper"])
def test_a_break_after_two_thirds(world, speaker, tell, end):
    begun = [*speaker.begin("m-upstream"), *map(speaker.text, TEXTS[:3])]

    response = tell(stream(begun, end=end), fallback=[whole(speaker)])

    assert_broken(speaker, response, "Once upon a ")
    assert world.upstream.names() == ["a"]
    assert world.log(response.headers["x-request-id"]).outcome == "STREAM_INTERRUPTED"


def test_a_stall_in_the_middle(world, speaker, tell):
    begun = [*speaker.begin("m-upstream"), *map(speaker.text, TEXTS[:2])]
    began_s = time.monotonic()

    response = tell(stream(begun, end="stall"), timeouts={"idle": 0.3})

    assert_broken(speaker, response, "Once upon ")
    assert time.monotonic() - began_s < 5


def test_an_error_event_in_the_middle(world, speaker, tell):
    begun = [*speaker.begin("m-upstream"), speaker.text("Once "), speaker.error_event("broken")]

    assert_broken(speaker, tell(stream(begun, end="stall")), "Once ")


def test_a_malformed_event_is_dropped(world, speaker, tell):
    events = speaker.stream(*TEXTS)
    events.insert(len(speaker.begin("")) + 1, b"data: {not json\n\n")

    response = tell(stream(events))

    assert_whole(speaker, response)
    assert b"not json" not in response.content


def test_no_end_marker(world, speaker, tell):
    events = [*speaker.begin("m-upstream"), *map(speaker.text, TEXTS)]
    if speaker.may_lack_end:
        assert_whole(speaker, tell(stream([*events, *speaker.finish("m-upstream")])))
    else:
        assert_broken(speaker, tell(stream(events)), TEXT)


# -- forms of the same bytes ---------------------------------------------------------------


def test_one_byte_a_packet(world, speaker, tell):
    body = b"".join(speaker.stream(*TEXTS))
    response = tell(raw(HEAD, *(bytes([byte]) for byte in body)))

    assert_whole(speaker, response)
    assert response.content == body


def test_an_event_of_a_mebibyte(world, speaker, tell):
    response = tell(stream(speaker.stream("Once ", "x" * 2**20, " end")))

    assert_whole(speaker, response, text="Once " + "x" * 2**20 + " end")


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_line_separators_inside_text(world, speaker, tell, separator):
    text = f"Once{separator}upon"
    response = tell(stream(speaker.stream(text)))

    assert response.content == b"".join(speaker.stream(text))
    assert_whole(speaker, response, text=text)


def test_crlf(world, speaker, tell):
    events = [event.replace(b"\n", b"\r\n") for event in speaker.stream(*TEXTS)]
    response = tell(stream(events))

    assert_whole(speaker, response)
    assert response.content == b"".join(events)


@pytest.mark.parametrize("lost", [1, 2])
def test_no_blank_line_at_the_end(world, speaker, tell, lost):
    body = b"".join(speaker.stream(*TEXTS))
    response = tell(stream([body[:-lost]]))

    assert_whole(speaker, response)
    assert response.content == body
