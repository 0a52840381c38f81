"""Requests that name an earlier response go to the channel that made it, and nowhere else."""

from __future__ import annotations

import json

import openai
import pytest

from tests.support.speakers import Responses
from tests.support.upstream import answer, error, stream

SPEAKER = Responses()
RESPONSE = {**SPEAKER.whole("hello", "m-upstream"), "id": "resp_made"}


def made(response_id="resp_made", text="hello"):
    return answer(200, {**SPEAKER.whole(text, "m-upstream"), "id": response_id})


def ask(client, **fields):
    return client.http.post("/v1/responses", json={"model": "m", "input": "hi", **fields})


@pytest.fixture
def two(world):
    """Two channels; the first one makes `resp_made`, then is asked behind the other."""
    first = world.channel("a", made(), priority=9)
    world.channel("b", made("resp_b", "from b"), priority=5)
    client = world.ready()
    assert ask(client).json()["id"] == "resp_made"
    first.priority = 0
    first.save()
    world.ready()
    assert ask(client).json()["id"] == "resp_b"
    world.upstream.seen.clear()
    return first


def test_a_response_that_goes_on_goes_where_it_was_made(world, two):
    response = ask(world.client, previous_response_id="resp_made")

    assert response.status_code == 200
    assert world.upstream.names() == ["a"]
    assert world.upstream.seen[0].json["previous_response_id"] == "resp_made"


def test_a_response_is_read_where_it_was_made(world, two):
    body = json.dumps(RESPONSE).encode()
    world.upstream.script("a", answer(200, body))

    response = world.client.http.get("/v1/responses/resp_made?include[]=x&include[]=y")

    assert response.content == body
    [seen] = world.upstream.seen
    assert (seen.name, seen.method, seen.body) == ("a", "GET", b"")
    assert seen.target.endswith("/v1/responses/resp_made?include[]=x&include[]=y")
    log = world.log(response.headers["x-request-id"])
    assert (log.request_model, log.chain) == ("m", str(two.pk))


def test_a_response_is_read_as_a_stream(world, two):
    events = SPEAKER.stream("hel", "lo")
    world.upstream.script("a", stream(events))

    response = world.client.http.get("/v1/responses/resp_made?stream=true&starting_after=1")

    assert response.content == b"".join(events)
    assert response.headers["content-type"].startswith("text/event-stream")


def test_a_streamed_response_is_bound_too(world):
    world.channel("a", stream(SPEAKER.stream("x")), made("resp_2"))
    client = world.ready()

    assert ask(client, stream=True).status_code == 200

    assert ask(client, previous_response_id="resp_1").status_code == 200


def test_a_broken_stream_is_not_bound(world):
    begun = [*SPEAKER.begin("m"), SPEAKER.text("x")]
    world.channel("a", stream(begun, end="cut"))
    client = world.ready()
    ask(client, stream=True)

    assert ask(client, previous_response_id="resp_1").status_code == 404


@pytest.mark.parametrize("path", ["/v1/responses/resp_unknown", "/v1/responses/..%2fmodels"])
def test_an_id_that_nobody_made_is_404(world, two, path):
    response = world.client.http.get(path)

    assert response.status_code == 404
    assert world.upstream.seen == []


def test_what_goes_on_from_an_unknown_id_is_404(world, two):
    response = ask(world.client, previous_response_id="resp_unknown")

    assert response.status_code == 404
    assert response.json()["error"]["code"] == "response_not_found"
    assert world.upstream.seen == []


def test_another_wallet_never_reaches_it(world, two):
    from billing_app.models import User
    from billing_app.services import token_create

    _, key = token_create(user=User.objects.create_user("bob"), name="t")
    world.ready()
    headers = {"Authorization": f"Bearer {key}"}

    assert world.client.http.get("/v1/responses/resp_made", headers=headers).status_code == 404
    assert world.client.http.get("/v1/responses/resp_made").status_code == 200


def test_a_channel_that_is_gone_is_503(world, two):
    two.status = "disabled"
    two.save()
    world.ready()

    response = ask(world.client, previous_response_id="resp_made")

    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_channel_available"
    assert world.upstream.seen == []


def test_a_key_that_is_gone_is_503(world, two):
    from channels_app.services import channel_key_add

    channel_key_add(channel=two, value="sk-another-0123456789abcdef")
    two.keys.order_by("pk").first().delete()
    world.ready()

    assert ask(world.client, previous_response_id="resp_made").status_code == 503


def test_retries_stay_on_the_channel_and_its_key(world, two):
    from channels_app.services import channel_key_add

    channel_key_add(channel=two, value="sk-another-0123456789abcdef")
    world.options(RetryTimes=2)
    world.ready()
    world.upstream.script("a", error(500), error(429), made("resp_3"))

    response = ask(world.client, previous_response_id="resp_made")

    assert response.status_code == 200
    assert world.upstream.names() == ["a", "a", "a"]
    assert len({seen.headers["authorization"] for seen in world.upstream.seen}) == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_other_methods_are_refused(world, two, method):
    response = world.client.http.request(method, "/v1/responses/resp_made")

    assert response.status_code == 405
    assert response.headers["allow"] == "GET"


def test_the_models_of_the_token_count(world, two):
    world.token.model_names = ["other"]
    world.token.save()
    world.ready()

    assert world.client.http.get("/v1/responses/resp_made").status_code == 403


def test_the_sdk(world, two):
    sdk = openai.OpenAI(base_url=f"{world.relay.url}/v1", api_key=world.key, max_retries=0)

    assert sdk.responses.retrieve("resp_made").output_text == "hello"
    later = sdk.responses.create(model="m", input="and?", previous_response_id="resp_made")
    assert later.output_text == "hello"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve("resp_unknown")
    sdk.close()


async def test_another_process_finds_it_in_the_state_store(state_store):
    from relay_app.bindings import Binding, Bindings

    binding = Binding(channel_id=1, key_id=None, model="m")
    one, other = Bindings(state_store), Bindings(state_store)
    one.put(7, "resp_1", binding)
    await one.close()

    assert await other.find(7, "resp_1") == binding
    assert await other.find(8, "resp_1") is None
    await other.close()


async def test_without_the_state_store_this_process_knows_its_own():
    from relay_app.bindings import Binding, Bindings

    binding = Binding(channel_id=1, key_id=2, model="m")
    bindings = Bindings("redis://127.0.0.1:1/0")
    bindings.put(7, "resp_1", binding)

    assert await bindings.find(7, "resp_1") == binding
    assert await bindings.find(7, "resp_2") is None
    await bindings.close()
