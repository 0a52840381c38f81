"""What answers cost through the real server, by what they report and by what they hold."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.server.test_money import assert_books_are_right, entries, pay_in, priced, wallet
from tests.support import gemini
from tests.support.speakers import SPEAKERS, Responses, data, documents
from tests.support.upstream import answer, stream

RESPONSES = Responses()
PICTURE = {"b64_json": "iVBO"}


@pytest.fixture(autouse=True)
def _paying(world):
    world.options(AllowUnpricedModels=False, TrustQuota="0")
    pay_in(world)


def spent(world: Any) -> int:
    """Return what was charged so far; the books agree."""
    available, reserved, spent_nusd = wallet(world)
    assert (available + spent_nusd, reserved) == (5 * 10**9, 0)
    assert_books_are_right()
    return spent_nusd


def post(world: Any, path: str, document: Any) -> Any:
    response = world.ready().http.post(path, json=document)
    assert response.status_code == 200
    return response


# -- answers without usage -----------------------------------------------------------------


def without_usage(document: Any) -> Any:
    """Return the document without what it tells of usage, at any depth."""
    if isinstance(document, list):
        return [without_usage(item) for item in document]
    if not isinstance(document, dict):
        return document
    return {
        name: without_usage(value)
        for name, value in document.items()
        if name not in ("usage", "usageMetadata")
    }


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("text", ["Hi", "Grüße aus Köln, 日本"])
@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.name)
def test_an_answer_without_usage_is_charged_by_its_text(world, speaker, text, is_stream):
    priced(world, input=0, output=10)
    events = [
        data(without_usage(d)) for d in documents(b"".join(speaker.stream(text[:1], text[1:])))
    ]
    if speaker.name == "openai":
        events += speaker.last()
    whole = json.dumps(without_usage(speaker.whole(text, "m-upstream")))  # escaped
    action = stream(events) if is_stream else answer(200, whole.encode())
    world.channel("a", action, provider=speaker.provider)

    assert speaker.ask(world.ready(), is_stream=is_stream).status_code == 200

    assert spent(world) == -(-len(text.encode()) // 4) * 10000


# -- several answers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "calls"),
    [
        ({"generationConfig": {"candidateCount": 3, "maxOutputTokens": 5}}, 3),
        ({"generation_config": {"candidate_count": 2}}, 2),
        ({"generationConfig": {"candidateCount": "many"}}, 1),
        ({"generationConfig": {}}, 1),
        ({}, 1),
    ],
)
@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent"])
def test_geminis_candidates_are_charged_by_the_call_each(world, method, config, calls):
    priced(world, per_call="0.05")
    world.channel("a", answer(200, gemini.content()), provider="gemini")

    post(world, f"/v1beta/models/m:{method}", {"contents": [], **config})

    assert spent(world) == calls * 50_000_000


# -- by the second -------------------------------------------------------------------------


def transcribe(world: Any, size: int, **fields: str) -> Any:
    files = {"file": ("a.mp3", b"x" * size, "audio/mpeg")}
    response = world.ready().http.post(
        "/v1/audio/transcriptions", data={"model": "m", **fields}, files=files
    )
    assert response.status_code == 200
    return response


@pytest.mark.parametrize(
    "told",
    [
        {"usage": {"type": "duration", "seconds": 37}},
        {"task": "transcribe", "duration": 36.709999084472656},
    ],
    ids=["usage", "verbose"],
)
def test_a_transcript_is_charged_for_the_seconds_that_it_tells(world, told):
    priced(world, per_second="0.0001")
    world.channel("a", answer(200, {"text": "hello", **told}))

    transcribe(world, 48_000)

    assert entries(world)[1] == ("reserve", -3 * 100_000)
    assert spent(world) == 37 * 100_000


@pytest.mark.parametrize(("size", "seconds"), [(1, 1), (16_000, 1), (16_001, 2), (1_600_000, 100)])
def test_a_transcript_that_tells_no_length_is_charged_by_the_size_of_the_file(world, size, seconds):
    priced(world, per_second="0.0001")
    text = {"Content-Type": "text/plain"}
    world.channel("a", answer(200, b"hello", headers=text))

    transcribe(world, size, response_format="text")

    assert entries(world)[1] == ("reserve", -seconds * 100_000)
    assert spent(world) == seconds * 100_000


def test_a_streamed_transcript_is_charged_by_the_second_too(world):
    priced(world, per_second="0.0001")
    done = {"type": "transcript.text.done", "text": "hi", "usage": {"seconds": 4.2}}
    events = [data({"type": "transcript.text.delta", "delta": "hi"}), data(done)]
    world.channel("a", stream(events))

    transcribe(world, 100, stream="true")

    assert spent(world) == 5 * 100_000


def test_sound_in_base64_is_as_long_as_its_bytes(world):
    priced(world, per_second="0.0001")
    world.channel("a", answer(200, {"text": "hello"}))
    sound = base64.b64encode(b"x" * 48_000).decode()

    post(world, "/v1/audio/transcriptions", {"model": "m", "input_audio": {"data": sound}})

    assert spent(world) == 3 * 100_000


def test_a_token_priced_transcript_is_not_charged_by_the_second(world):
    priced(world, input=1, output=10)
    usage = {"input_tokens": 37, "output_tokens": 14}
    world.channel("a", answer(200, {"text": "hello", "duration": 9, "usage": usage}))

    transcribe(world, 160_000)

    assert spent(world) == 37 * 1000 + 14 * 10000


# -- pictures ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["image_generation", "image_edit"])
def test_streamed_pictures_are_charged_each(world, family):
    priced(world, per_image="0.04")
    partial = data({"type": f"{family}.partial_image", **PICTURE})
    completed = data({"type": f"{family}.completed", **PICTURE, "usage": {"total_tokens": 9}})
    world.channel("a", stream([partial, partial, completed, partial, completed]))

    post(world, "/v1/images/generations", {"model": "m", "prompt": "x", "stream": True, "n": 2})

    assert spent(world) == 2 * 40_000_000


def test_pictures_of_a_stream_that_breaks_are_charged(world):
    priced(world, per_image="0.04")
    completed = data({"type": "image_generation.completed", **PICTURE})
    partial = data({"type": "image_generation.partial_image", **PICTURE})
    world.channel("a", stream([completed, partial, b"data: {"], end="reset"))

    post(world, "/v1/images/generations", {"model": "m", "prompt": "x", "stream": True, "n": 2})

    assert spent(world) == 40_000_000


@pytest.mark.parametrize("is_stream", [False, True])
def test_geminis_pictures_are_charged_each(world, is_stream):
    priced(world, input=1, output=10, per_image="0.04")
    picture = {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}
    chunks = [
        gemini.said({"text": "one"}, picture, usageMetadata={"promptTokenCount": 3}),
        gemini.said(picture, reason="STOP", usageMetadata=gemini.USAGE),
    ]
    action = stream(map(gemini.event, chunks)) if is_stream else answer(200, chunks)
    world.channel("a", action, provider="gemini")

    method = "streamGenerateContent" if is_stream else "generateContent"
    post(world, f"/v1beta/models/m:{method}", {"contents": [{"parts": [{"text": "hi"}]}]})

    assert spent(world) == 2 * 40_000_000 + 3 * 1000 + 2 * 10000


@pytest.mark.parametrize("is_stream", [False, True])
def test_pictures_of_responses_are_charged_once_each(world, is_stream):
    priced(world, input=1, output=10, per_image="0.04")
    drawn = {"type": "image_generation_call", "status": "completed", "result": "iVBO"}
    whole = RESPONSES.whole("ab", "m-upstream")
    whole["output"] += [drawn, drawn]
    done = data({"type": "response.output_item.done", "output_index": 1, "item": drawn})
    events = [
        *RESPONSES.begin("m-upstream"),
        RESPONSES.text("ab"),
        *(done, done),
        data({"type": "response.completed", "response": whole}),
    ]
    world.channel("a", stream(events) if is_stream else answer(200, whole))

    post(world, "/v1/responses", {"model": "m", "input": "x", "stream": is_stream})

    # 3 tokens in, 2 out, and 4 that only the total of 9 has
    assert spent(world) == 2 * 40_000_000 + 3 * 1000 + 6 * 10000


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_image_answer_without_usage_pays_its_prompt_by_length(world, is_stream):
    priced(world, input=2, output=10, per_image="0.04")
    completed = data({"type": "image_generation.completed", **PICTURE})
    action = stream([completed]) if is_stream else answer(200, {"data": [PICTURE]})
    world.channel("a", action)
    request = {"model": "m", "prompt": "x" * 400, "stream": is_stream}

    post(world, "/v1/images/generations", request)

    prompt_tokens = len(world.upstream.seen[0].body) // 4
    assert prompt_tokens >= 100
    assert spent(world) == 40_000_000 + prompt_tokens * 2000
