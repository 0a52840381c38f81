"""Gemini's paths through the real server: answers, streams in both forms, errors, models."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.conftest import WIRE_DIR
from tests.support import gemini as g
from tests.support.gemini import assert_error, assert_told, chunks_of
from tests.support.upstream import Gate, answer, chat, raw, reset, silent, stream

RECORDINGS = WIRE_DIR / "recordings"
WHOLE = g.whole_stream("Hel", "lo")
BODY = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
FORMS = pytest.mark.parametrize("query", ["?alt=sse", ""])


def channel(world, name, *actions, **fields):
    base_url = world.upstream.url(name).removesuffix("/v1") + "/v1beta"
    values = {"provider": "gemini", "base_url": base_url}
    return world.channel(name, *actions, **values | fields)


def ask(world, method="generateContent", query="", *, model="m", **fields):
    client = world.ready()
    return client.http.post(f"/v1beta/models/{model}:{method}{query}", json=BODY | fields)


def ask_stream(world, query):
    return ask(world, "streamGenerateContent", query)


def as_asked(pieces, query):
    """Return what a client that asked so gets for these events."""
    return b"".join(pieces) if query else g.array(pieces)


# -- whole answers -----------------------------------------------------------------


def test_an_answer_passes_through_untouched(world):
    odd = b'{ "candidates":[{"content":{"parts":[{"text":"\xc3\xa9"}]}}],\n "n":1e2}'
    channel(world, "a", answer(200, odd, headers={"Content-Type": "application/json; x=y"}))
    body = b'{"contents":  [ ], "unknown": [1.0, null], "model": "models/m"}'
    client = world.ready()

    response = httpx.post(
        f"{client.url}/v1beta/models/m:generateContent?key={world.key}&x=%20&$fields=a",
        content=body,
    )

    assert (response.status_code, response.content) == (200, odd)
    assert response.headers["content-type"] == "application/json; x=y"
    [seen] = world.upstream.seen
    assert seen.body == body
    assert seen.target == "/a/v1beta/models/m:generateContent?x=%20&$fields=a"
    assert seen.headers["x-goog-api-key"] == "sk-upstream-a-0123456789"
    assert seen.headers["accept-encoding"] == "identity"
    assert "authorization" not in seen.headers
    assert world.key not in str(seen.headers)


def assert_nothing_left(world, response):
    failed = world.log(response.headers["x-request-id"]).attempts.last()
    assert failed.failure_class == "CHANNEL_CONFIG"
    assert "leads out of the base URL" in failed.message


def test_a_mapping_does_not_lead_out_of_the_base_url(world):
    mapping = {"m": "../../../evil"}
    channel(world, "a", answer(200, g.content()), model_mapping=mapping)

    assert_nothing_left(world, ask(world))

    assert not world.upstream.seen


def test_a_model_to_fall_back_to_does_not_lead_out_of_the_base_url(world):
    channel(world, "a", reset())
    channel(world, "b", answer(200, g.content()), model_names=["a/../../n"])
    world.options(ModelFallbacks={"m": ["a/../../n"]}, RetryTimes=1)

    assert_nothing_left(world, ask(world))

    assert {seen.name for seen in world.upstream.seen} == {"a"}


def test_a_token_in_the_header_of_its_sdks(world):
    channel(world, "a", answer(200, g.content()))
    client = world.ready()

    response = httpx.post(
        f"{client.url}/v1beta/models/m:generateContent",
        json=BODY,
        headers={"x-goog-api-key": world.key, "x-goog-api-client": "x"},
    )

    assert response.json() == g.content()
    assert "x-goog-api-client" not in world.upstream.seen[0].headers


@pytest.mark.parametrize(
    ("path", "model", "upstream_path"),
    [
        ("models/m", "m", "models/m"),
        ("models/a/b", "a/b", "models/a/b"),
        ("models/models/m", "m", "models/m"),
        ("tunedModels/m", "tunedModels/m", "tunedModels/m"),
        ("models/l:8b", "l:8b", "models/l%3A8b"),
        ("models/%C3%A9%20x", "é x", "models/%C3%A9%20x"),
    ],
)
def test_names_of_models(world, path, model, upstream_path):
    channel(world, "a", answer(200, g.content()), model_names=[model])

    response = world.ready().http.post(f"/v1beta/{path}:generateContent", json=BODY)

    assert response.status_code == 200
    assert world.upstream.seen[0].target == f"/a/v1beta/{upstream_path}:generateContent"
    assert world.log(response.headers["x-request-id"]).request_model == model


def test_a_name_can_not_lead_out_of_its_place(world):
    channel(world, "a", answer(200, g.content()), model_names=["*"])
    http = world.ready().http

    for name in ("x/..%2f..%2ffiles", "%2e%2e%2fx", "a//b"):
        response = http.post(f"/v1beta/models/{name}:generateContent", json=BODY)

        assert_told(response, 400, "INVALID_ARGUMENT", "INVALID_REQUEST")
    assert world.upstream.seen == []


def test_a_mapped_model_goes_into_the_path_and_the_rest_is_untouched(world):
    channel(world, "a", answer(200, g.content()), model_mapping={"m": "other"})
    body = b'{"contents": [ 1.0 ]}'

    world.ready().http.post("/v1beta/models/m:generateContent", content=body)

    [seen] = world.upstream.seen
    assert (seen.target, seen.body) == ("/a/v1beta/models/other:generateContent", body)


def test_failover_answers_and_is_logged(world):
    first = channel(world, "a", g.error(503, name="UNAVAILABLE"), priority=2)
    second = channel(world, "b", answer(200, g.content()), priority=1)
    world.options(RetryTimes=1)

    response = ask(world)

    assert response.json() == g.content()
    log = world.log(response.headers["x-request-id"])
    assert log.chain == f"{first.pk}->{second.pk}"
    assert (log.endpoint, log.outcome) == ("POST /v1beta/models/m:generateContent", "ok")
    assert (log.response_model, log.input_tokens, log.output_tokens) == ("m-upstream", 3, 2)


def test_an_empty_answer_is_tried_again_then_passed_on(world):
    empty = g.said(reason="STOP", usageMetadata={"promptTokenCount": 3})
    channel(world, "a", answer(200, empty), priority=2)
    channel(world, "b", answer(200, empty), priority=1)
    world.options(RetryTimes=1)

    response = ask(world)

    assert world.upstream.names() == ["a", "b"]
    assert (response.status_code, response.json()) == (200, empty)


def test_a_blocked_prompt_is_an_answer(world):
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}}
    channel(world, "a", answer(200, blocked), priority=2)
    channel(world, "b", answer(200, g.content()), priority=1)
    world.options(RetryTimes=1)

    assert ask(world).json() == blocked
    assert world.upstream.names() == ["a"]


# -- embeddings and counts -----------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "document"),
    [
        ("embedContent", {"embedding": {"values": [0.5]}}),
        ("batchEmbedContents", {"embeddings": [{"values": [0.5]}]}),
        ("countTokens", {"totalTokens": 3}),
        ("countTokens", {}),
    ],
)
def test_other_methods_pass_through(world, method, document):
    channel(world, "a", answer(200, document))
    body = b'{"model": "models/m", "content": {"parts" :[]}}'

    response = world.ready().http.post(f"/v1beta/models/m:{method}?x=1", content=body)

    assert (response.status_code, response.json()) == (200, document)
    [seen] = world.upstream.seen
    assert (seen.target, seen.body) == (f"/a/v1beta/models/m:{method}?x=1", body)


def test_a_mapped_model_is_named_in_the_bodies_of_embeddings(world):
    channel(world, "a", answer(200, {"embeddings": [{"values": [1]}]}), model_mapping={"m": "o"})
    document = {"requests": [{"model": "models/m", "content": {}}] * 2}

    world.ready().http.post("/v1beta/models/m:batchEmbedContents", json=document)

    [seen] = world.upstream.seen
    assert seen.target == "/a/v1beta/models/o:batchEmbedContents"
    assert [part["model"] for part in seen.json["requests"]] == ["models/o"] * 2


# -- streams -----------------------------------------------------------------------


@FORMS
def test_a_stream_is_what_the_client_asked_for(world, query):
    channel(world, "a", stream(WHOLE))

    response = ask_stream(world, query)

    assert response.content == as_asked(WHOLE, query)
    kind = "text/event-stream" if query else "application/json"
    assert response.headers["content-type"] == kind
    [seen] = world.upstream.seen
    assert seen.target == "/a/v1beta/models/m:streamGenerateContent?alt=sse"
    log = world.log(response.headers["x-request-id"])
    assert (log.outcome, log.response_model, log.is_stream) == ("ok", "m-upstream", True)
    assert (log.input_tokens, log.output_tokens) == (3, 2)


def test_the_rest_of_the_query_goes_upstream(world):
    channel(world, "a", stream(WHOLE))

    ask(world, "streamGenerateContent", "?x=1&$alt=json%3Benum-encoding%3Dint&y")

    assert world.upstream.seen[0].target.endswith(":streamGenerateContent?x=1&y&alt=sse")


def test_events_of_a_method_that_does_not_stream(world):
    [piece] = pieces = [g.finish("STOP", {"text": "all"})]
    channel(world, "a", stream(pieces))

    assert ask(world, "generateContent", "?alt=sse").content == piece
    assert world.upstream.seen[0].target.endswith(":generateContent?alt=sse")


@FORMS
@pytest.mark.parametrize("is_array", [False, True])
def test_a_whole_body_in_answer_to_a_stream_is_what_the_client_asked_for(world, query, is_array):
    body = g.array(WHOLE) if is_array else json.dumps(g.content(), indent=2).encode()
    channel(world, "a", answer(200, body))

    response = ask_stream(world, query)

    expected = json.loads(body) if is_array else [g.content()]
    assert chunks_of(response) == expected
    if is_array and not query:
        assert response.content == body
    assert world.log(response.headers["x-request-id"]).output_tokens == 2


@FORMS
def test_nothing_is_sent_before_something_is_said(world, query):
    nothing = [b": ping\n\n", g.event({"usageMetadata": {"promptTokenCount": 3}}), g.text("")]
    channel(world, "a", stream(nothing, end="cut"), priority=2)
    channel(world, "b", stream(WHOLE), priority=1)
    world.options(RetryTimes=1)

    response = ask_stream(world, query)

    assert response.content == as_asked(WHOLE, query)
    assert world.upstream.names() == ["a", "b"]


@FORMS
def test_pieces_are_passed_on_as_they_come(world, query):
    gate = Gate()
    channel(world, "a", stream(WHOLE, gate=gate))
    client = world.ready()

    path = f"/v1beta/models/m:streamGenerateContent{query}"
    with client.http.stream("POST", path, json=BODY) as response:
        parts = response.iter_raw()
        first = next(parts)
        for _ in WHOLE:
            gate.open()
        rest = b"".join(parts)

    assert first + rest == as_asked(WHOLE, query)
    assert first in (WHOLE[0], g.array(WHOLE[:1]).removesuffix(b"\n]"))


@FORMS
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (g.problem(503, "busy", name="UNAVAILABLE"), (503, "UNAVAILABLE")),
        (g.problem(429, "slow", name="RESOURCE_EXHAUSTED"), (429, "RESOURCE_EXHAUSTED")),
    ],
)
def test_an_error_event_at_first_is_told_as_an_error_answer(world, query, fault, told):
    channel(world, "a", stream([b": ping\n\n", g.event(fault)]))

    assert assert_told(ask_stream(world, query), *told) == fault["error"]["message"]


@FORMS
@pytest.mark.parametrize("end", ["cut", "reset", "proper", "error event"])
def test_a_break_in_the_middle_ends_in_an_error(world, query, end):
    said = [g.text("Hel")]
    more = [g.event(g.problem(503))] if end == "error event" else []
    channel(world, "a", stream(said + more, end="proper" if more else end))

    response = ask_stream(world, query)

    request_id = response.headers["x-request-id"]
    first, last = chunks_of(response)
    assert response.content.startswith(said[0] if query else g.array(said).removesuffix(b"\n]"))
    assert first == json.loads(g.array(said))[0]
    if more:  # it said why
        assert_error(last, 503, "INTERNAL", request_id=request_id)
    else:
        assert_error(last, 502, "UNAVAILABLE", "STREAM_INTERRUPTED", request_id=request_id)
    assert world.log(request_id).outcome == "STREAM_INTERRUPTED"


@FORMS
def test_a_stream_that_falls_silent_is_broken(world, query):
    channel(world, "a", stream([g.text("Hel")], end="stall"), timeouts={"idle": 0.2})

    *_, last = chunks_of(response := ask_stream(world, query))

    request_id = response.headers["x-request-id"]
    assert_error(last, 502, "UNAVAILABLE", "STREAM_INTERRUPTED", request_id=request_id)


@FORMS
@pytest.mark.parametrize("end", ["cut", "reset"])
def test_a_break_after_the_end_is_none(world, query, end):
    channel(world, "a", stream(WHOLE, end=end))

    response = ask_stream(world, query)

    assert response.content == as_asked(WHOLE, query)
    assert world.log(response.headers["x-request-id"]).outcome == "ok"


@FORMS
def test_a_client_that_hangs_up_ends_the_upstreams_work(world, query):
    channel(world, "a", stream(WHOLE[:1], end="stall"))
    client = world.ready()

    path = f"/v1beta/models/m:streamGenerateContent{query}"
    with client.http.stream("POST", path, json=BODY) as response:
        next(response.iter_raw())

    assert world.upstream.seen[0].closed.wait(timeout=5)


@FORMS
def test_an_empty_stream_is_tried_again_then_passed_on(world, query):
    pieces = [g.finish(usageMetadata={"promptTokenCount": 3})]
    channel(world, "a", stream(pieces), priority=2)
    channel(world, "b", stream(pieces), priority=1)
    world.options(RetryTimes=1)

    response = ask_stream(world, query)

    assert world.upstream.names() == ["a", "b"]
    assert (response.status_code, response.content) == (200, as_asked(pieces, query))


@FORMS
@pytest.mark.parametrize(
    "piece",
    [
        g.event({"candidates": [{"finishReason": "SAFETY"}]}),
        g.event({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}),
    ],
)
def test_a_stream_cut_short_before_anything_was_said_is_an_answer(world, query, piece):
    channel(world, "a", stream([piece]), priority=2)
    channel(world, "b", stream(WHOLE), priority=1)
    world.options(RetryTimes=1)

    assert ask_stream(world, query).content == as_asked([piece], query)


@FORMS
def test_malformed_events_and_foreign_marks_are_dropped(world, query):
    noise = [b'data: {"candidates": [\n\n', b"data: [DONE]\n\n"]
    channel(world, "a", stream([WHOLE[0], noise[0], *WHOLE[1:], noise[1]]))

    assert ask_stream(world, query).content == as_asked(WHOLE, query)


# -- errors ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "FAILED_PRECONDITION"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (413, "INVALID_ARGUMENT"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
    ],
)
@FORMS
def test_an_upstreams_error_keeps_status_name_reason_and_message(world, status, name, query):
    channel(world, "a", g.error(status, "too bad", name=name, reason="SOME_REASON"))
    method = "streamGenerateContent" if query else "generateContent"

    assert assert_told(ask(world, method, query), status, name, "SOME_REASON") == "too bad"


def test_keys_in_the_texts_of_upstreams_are_hidden(world):
    key = "AIzaSyA0123456789abcdefghijklmnopqrstuv"
    channel(world, "a", g.error(400, f"API key {key} and sk-upstream-a-0123456789 not valid"))

    told = assert_told(ask(world), 400, "INTERNAL")

    assert told == "API key *** and *** not valid"


def test_the_wait_of_an_upstream_is_told(world):
    fault = g.error(429, "slow", name="RESOURCE_EXHAUSTED", wait="12.3s")
    channel(world, "a", fault)

    response = ask(world)

    assert_told(response, 429, "RESOURCE_EXHAUSTED")
    assert response.headers["retry-after"] == "13"


def test_no_answer_and_no_time(world):
    channel(world, "a", reset(), model_names=["gone"])
    channel(world, "b", silent(), model_names=["slow"], timeouts={"response": 0.2})
    world.ready()
    world.upstream.close_idle()

    assert_told(ask(world, model="gone"), 502, "UNAVAILABLE", "UPSTREAM_UNREACHABLE")
    assert_told(ask(world, model="slow"), 504, "DEADLINE_EXCEEDED", "UPSTREAM_TIMEOUT")


def test_refusals_of_the_relay_itself(world):
    channel(world, "a", answer(200, g.content()), model_names=["m", "other"])
    world.channel("openai", answer(200, chat()), model_names=["gpt"])
    world.token.model_names = ["m", "unknown", "gpt"]
    world.token.save()
    http = world.ready().http

    unknown = assert_told(ask(world, model="unknown"), 404, "NOT_FOUND", "MODEL_NOT_FOUND")
    assert "'unknown'" in unknown
    assert_told(ask(world, model="other"), 403, "PERMISSION_DENIED", "MODEL_NOT_ALLOWED")
    assert_told(ask(world, model="gpt"), 503, "UNAVAILABLE", "NO_CHANNEL_AVAILABLE")
    bad = http.post("/v1beta/models/m:generateContent", content=b"[]")
    assert assert_told(bad, 400, "INVALID_ARGUMENT", "INVALID_REQUEST").startswith(
        "the request body has the wrong type"
    )
    assert world.upstream.seen == []


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent", "countTokens"])
@pytest.mark.parametrize("headers", [{}, {"x-goog-api-key": "x"}])
def test_a_bad_token(world, method, headers):
    world.ready()

    path = f"{world.relay.url}/v1beta/models/m:{method}"
    response = httpx.post(path, json=BODY, headers=headers)

    assert_told(response, 401, "UNAUTHENTICATED", "INVALID_API_KEY")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["m:generateContent", "m:embedContent", "m:countTokens"])
def test_a_wrong_method(world, method, path):
    response = world.ready().http.request(method, f"/v1beta/models/{path}")

    assert_told(response, 405, "INVALID_ARGUMENT", "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    ["", "/", "/files", "/x:generateContent", "/models/m:predict", "/models/:generateContent"],
)
def test_paths_below_that_are_no_endpoint(world, method, path):
    response = world.ready().http.request(method, f"/v1beta{path}")

    assert_told(response, 404, "NOT_FOUND", "UNKNOWN_URL")


def test_a_body_that_is_too_large(world, settings):
    settings.MAX_REQUEST_BODY_BYTES = 1 << 20

    response = ask(world, x="x" * (1 << 20))

    assert_told(response, 413, "INVALID_ARGUMENT", "REQUEST_TOO_LARGE")


def test_an_unexpected_fault(world, monkeypatch):
    from relay_app import pipeline

    monkeypatch.setattr(pipeline, "find_routes", lambda *a, **k: 1 / 0)

    assert "division" not in assert_told(ask(world), 500, "INTERNAL", "INTERNAL_ERROR")


# -- models --------------------------------------------------------------------------


def test_models_in_the_list_form_of_gemini(world):
    channel(world, "a", model_names=["m2", "m1", "x-*"])

    document = world.ready().http.get("/v1beta/models?pageSize=1").json()

    assert [row["name"] for row in document["models"]] == ["models/m1", "models/m2"]
    assert document.keys() == {"models"}


@pytest.mark.parametrize("name", ["m1", "x-1"])
def test_one_model(world, name):
    channel(world, "a", model_names=["m1", "x-*"])

    response = world.ready().http.get(f"/v1beta/models/{name}")

    assert (response.json()["name"], response.json()["displayName"]) == (f"models/{name}", name)


def test_a_model_that_is_not_there_or_not_allowed(world):
    channel(world, "a", model_names=["m", "other"])
    world.token.model_names = ["m", "unknown"]
    world.token.save()
    http = world.ready().http

    for name in ("unknown", "other"):
        told = assert_told(http.get(f"/v1beta/models/{name}"), 404, "NOT_FOUND", "MODEL_NOT_FOUND")
        assert repr(name) in told
    assert_told(http.post("/v1beta/models/m"), 405, "INVALID_ARGUMENT", "METHOD_NOT_ALLOWED")
    anonymous = httpx.get(f"{world.relay.url}/v1beta/models")
    assert_told(anonymous, 401, "UNAUTHENTICATED", "INVALID_API_KEY")


# -- the simulated upstream ------------------------------------------------------------


@FORMS
def test_the_simulated_upstream_speaks_it_too(world, query):
    world.channel("s", provider="simulated", base_url="", model_names=["sim*"])

    whole = ask(world, model="sim").json()
    streamed = ask(world, "streamGenerateContent", query, model="sim-chunks-3")

    [part] = whole["candidates"][0]["content"]["parts"]
    assert part["text"] == "Hello from channel s."
    assert len(chunks_of(streamed)) == 4
    assert ask(world, "countTokens", model="sim").json() == {"totalTokens": 8}
    assert_told(ask(world, model="sim-status-429"), 429, "RESOURCE_EXHAUSTED")


# -- recorded traffic --------------------------------------------------------------------

CONTENT = sorted(
    path
    for method in ("generateContent", "streamGenerateContent")
    for path in RECORDINGS.glob(f"*__{method}__*.json")
)
OTHER = sorted(
    path
    for method in ("batchEmbedContents", "countTokens")
    for path in RECORDINGS.glob(f"*__{method}__*.json")
)


def replayed(body, response):
    """Return the action that plays a recorded answer again, in packets that cut it anywhere."""
    kind = response["headers"].get("content-type", "application/json")
    head = f"HTTP/1.1 {response['status']} X\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
    pieces = [body[at : at + 97] for at in range(0, len(body), 97)]
    return raw(head.encode(), *pieces)


@pytest.mark.wire
@pytest.mark.parametrize("path", [*CONTENT, *OTHER], ids=lambda path: path.stem)
def test_recorded_traffic_passes_through_byte_for_byte(world, path):
    recording = json.loads(path.read_text())
    method, _, query = recording["request"]["path"].rpartition(":")[2].partition("?")
    body = g.recorded(path)
    channel(world, "a", replayed(body, recording["response"]))
    client = world.ready()

    response = client.http.post(
        f"/v1beta/models/m:{method}{'?' + query if query else ''}",
        json=recording["request"]["body"] or BODY,
    )

    status = recording["response"]["status"]
    if status == 200:
        assert (response.status_code, response.content) == (200, body)
        assert world.log(response.headers["x-request-id"]).input_tokens > 0
        return
    problem = json.loads(body)["error"]
    told = response.json()["error"]
    assert (response.status_code, told["code"], told["status"]) == (
        status,
        status,
        problem["status"],
    )
    assert told["message"].startswith(problem["message"][:20])


@pytest.mark.wire
@pytest.mark.parametrize(
    "path", sorted(RECORDINGS.glob("*__streamGenerateContent__stream__*")), ids=lambda p: p.stem
)
def test_recorded_streams_come_as_arrays_to_those_who_ask_so(world, path):
    body = g.recorded(path)
    channel(world, "a", replayed(body, json.loads(path.read_text())["response"]))

    response = ask_stream(world, "")

    datas = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
    assert response.content == b"[" + b"\n,\r\n".join(datas) + b"\n]"
