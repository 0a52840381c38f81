"""POST /v1/messages: errors in the dialect of the path, and which channels are asked."""

from __future__ import annotations

import httpx
import pytest

from tests.support import anthropic as a
from tests.support.anthropic import assert_told
from tests.support.upstream import answer, chat, reset, silent
from tests.support.upstream import error as openai_error


def channel(world, name, *actions, **fields):
    return world.channel(name, *actions, **{"provider": "anthropic", **fields})


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_upstreams_error_keeps_status_type_code_and_message(world, is_stream):
    fault = a.error(
        400, "too large", type_="invalid_request_error", details={"error_code": "a_code"}
    )
    channel(world, "a", fault)

    response = world.ready().messages(stream=is_stream)

    assert assert_told(response, 400, "invalid_request_error", "a_code") == "too large"


def test_an_error_of_another_world_gets_a_type_of_this_one(world):
    channel(world, "a", openai_error(429, "slow down", code="rate_limit_exceeded"))

    told = assert_told(world.ready().messages(), 429, "rate_limit_error", "rate_limit_exceeded")

    assert told == "slow down"


def test_no_answer_and_no_time(world):
    channel(world, "a", reset(), model_names=["gone"])
    channel(world, "b", silent(), model_names=["slow"], timeouts={"response": 0.2})
    client = world.ready()
    world.upstream.close_idle()

    assert_told(client.messages("gone"), 502, "api_error", "upstream_unreachable")
    assert_told(client.messages("slow"), 504, "timeout_error", "upstream_timeout")


def test_refusals_of_the_relay_itself(world):
    channel(world, "a", answer(200, a.message()), model_names=["m", "other"])
    world.token.model_names = ["m", "unknown"]
    world.token.save()
    client = world.ready()
    http = client.http

    unknown = assert_told(client.messages("unknown"), 404, "not_found_error", "model_not_found")
    assert "'unknown'" in unknown
    assert_told(client.messages("other"), 403, "permission_error", "model_not_allowed")
    bad = assert_told(
        http.post("/v1/messages", json={"model": 1}),
        400,
        "invalid_request_error",
        "invalid_request",
    )
    assert bad.startswith("model has the wrong type")
    packed = http.post("/v1/messages", content=b"x", headers={"Content-Encoding": "br"})
    assert_told(packed, 415, "invalid_request_error", "unsupported_content_encoding")
    assert world.upstream.seen == []


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}, {"x-api-key": "x"}])
def test_a_bad_token(world, headers):
    world.ready()

    response = httpx.post(f"{world.relay.url}/v1/messages", json={}, headers=headers)

    assert_told(response, 401, "authentication_error", "invalid_api_key")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_wrong_method(world, method):
    response = world.ready().http.request(method, "/v1/messages")

    assert_told(response, 405, "invalid_request_error", "method_not_allowed")


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/foo", "/count_tokens/x", "/batches", "x", "/%ff"])
def test_paths_below_that_are_no_endpoint(world, method, path):
    response = world.ready().http.request(method, f"/v1/messages{path}")

    assert_told(response, 404, "not_found_error", "unknown_url")


def test_a_body_that_is_too_large(world, settings):
    settings.MAX_REQUEST_BODY_BYTES = 1 << 20

    response = world.ready().messages(system="x" * (1 << 20))

    assert_told(response, 413, "request_too_large", "request_too_large")


def test_an_unexpected_fault(world, monkeypatch):
    from relay_app import pipeline

    monkeypatch.setattr(pipeline, "find_routes", lambda *a, **k: 1 / 0)

    told = assert_told(world.ready().messages(), 500, "api_error", "internal_error")

    assert "division" not in told


# -- which channels are asked ----------------------------------------------------------


def test_only_channels_that_speak_the_dialect_are_asked(world):
    world.channel("openai", answer(200, chat()), priority=9)
    channel(world, "anthropic", answer(200, a.message()), priority=1)
    client = world.ready()

    assert client.messages().json() == a.message()
    assert client.chat().json() == chat()
    assert world.upstream.names() == ["anthropic", "openai"]


@pytest.mark.parametrize("retries", [0, 3])
def test_no_channel_that_speaks_it(world, retries):
    world.channel("openai", answer(200, chat()), model_names=["gpt"])
    channel(world, "anthropic", answer(200, a.message()), model_names=["claude"])
    world.options(RetryTimes=retries)
    client = world.ready()

    told = assert_told(client.messages("gpt"), 503, "overloaded_error", "no_channel_available")
    other = client.chat("claude")

    assert "'default'" in told
    assert "'gpt'" in told
    assert "anthropic" in told
    assert other.status_code == 503
    assert other.json()["error"]["code"] == "no_channel_available"
    assert "'claude'" in other.json()["error"]["message"]
    assert world.upstream.seen == []
    assert other.headers["x-relay-attempts"] == "0"


# -- GET /v1/models ----------------------------------------------------------------------


def test_models_in_the_list_form_of_anthropic(world):
    channel(world, "a", model_names=["m2", "m1", "x-*"])
    client = world.ready()

    response = client.http.get("/v1/models", headers={"anthropic-version": "2026-10-21"})

    document = response.json()
    assert [row["id"] for row in document["data"]] == ["m1", "m2"]
    assert {row["type"] for row in document["data"]} == {"model"}
    assert (document["has_more"], document["first_id"], document["last_id"]) == (False, "m1", "m2")
    assert response.headers["request-id"]
    assert client.http.get("/v1/models").json()["object"] == "list"


def test_errors_of_the_list_are_in_its_form_too(world):
    world.ready()
    version = {"anthropic-version": "2026-10-21"}

    response = httpx.get(f"{world.relay.url}/v1/models", headers=version)
    posted = world.client.http.post("/v1/models", headers=version)

    assert_told(response, 401, "authentication_error", "invalid_api_key")
    assert_told(posted, 405, "invalid_request_error", "method_not_allowed")
