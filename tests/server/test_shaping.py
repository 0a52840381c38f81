"""What upstreams get to see of a request after a channel's own settings were applied."""

from __future__ import annotations

import json

from tests.support.upstream import answer, chat, error


def test_the_upstream_is_asked_for_its_own_name_of_the_model(world):
    world.channel("a", answer(200, chat()), model_mapping={"m": "mid", "mid": "m-2024"}, weight=1)

    response = world.ready().chat()

    assert response.status_code == 200
    assert world.upstream.seen[0].json["model"] == "m-2024"


def test_each_channel_overrides_the_clients_own_request(world):
    world.channel(
        "a", error(500), priority=2, model_mapping={"m": "up"}, param_override={"seed": 1}
    )
    world.channel("b", answer(200, chat()), priority=1, param_override={"top_p": 0.5})
    world.options(RetryTimes=1)

    response = world.ready().chat(temperature=1.5)

    first, second = (seen.json for seen in world.upstream.seen)
    assert response.status_code == 200
    assert (first["model"], first["seed"], first["temperature"]) == ("up", 1, 1.5)
    assert (second["model"], second["top_p"], second["temperature"]) == ("m", 0.5, 1.5)
    assert "seed" not in second
    assert "top_p" not in first


def test_operations_know_which_attempt_it_is(world):
    def override(name):
        condition = {"path": "retry_index", "mode": "gte", "value": 1}
        operation = {"mode": "set", "path": "seed", "value": name, "conditions": [condition]}
        return {"operations": [operation]}

    world.channel("a", error(500), priority=2, param_override=override(1))
    world.channel("b", answer(200, chat()), priority=1, param_override=override(2))
    world.options(RetryTimes=1)

    world.ready().chat()

    first, second = (seen.json for seen in world.upstream.seen)
    assert "seed" not in first
    assert second["seed"] == 2


def test_headers_of_a_channel_replace_the_providers_own(world):
    world.channel(
        "a",
        answer(200, chat()),
        header_override={
            "authorization": "Token {api_key}",
            "X-Org": "acme",
            "X-Tier": "{client_header:X-Tier}",
            "X-Absent": "{client_header:X-Absent}",
            "X-Stolen": "{client_header:Authorization}",
        },
    )
    client = world.ready()

    response = client.post(
        json.dumps({"model": "m", "messages": []}).encode(),
        headers={"X-Tier": "gold", "Content-Type": "application/json"},
    )

    headers = world.upstream.seen[0].headers
    assert response.status_code == 200
    assert headers["authorization"] == "Token sk-upstream-a-0123456789"
    assert (headers["x-org"], headers["x-tier"]) == ("acme", "gold")
    assert not {"x-absent", "x-stolen"} & headers.keys()
    assert world.key not in str(headers)


def test_a_mapping_in_a_circle_is_the_channels_fault_and_the_next_answers(world):
    world.channel("a", answer(200, chat()), priority=2, model_mapping={"m": "x", "x": "m"})
    world.channel("b", answer(200, chat()), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 200
    assert world.upstream.names() == ["b"]
    log = world.log(response.headers["x-request-id"])
    assert log.attempts.get(number=1).upstream_code == "channel:model_mapped_error"


def test_a_broken_override_tells_nobody_what_is_in_it(world):
    secret = "sk-inside-override-0123456789"
    channel = world.channel(
        "a",
        answer(200, chat()),
        priority=2,
        header_override={"X-A": f"{secret}\u4e2d"},
        param_override={"metadata": {"k": secret}},
    )
    channel.keys.all().delete()
    world.channel("c", answer(200, chat()), priority=1, header_override={"X-B": f"{secret}\u4e2d"})
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code >= 500
    assert secret not in response.text
    log = world.log(response.headers["x-request-id"])
    assert log.attempts.get(number=2).upstream_code == "channel:header_override_invalid"
    assert all(secret not in attempt.message for attempt in log.attempts.all())


def test_return_error_is_told_to_the_client_and_ends_the_request(world):
    told = {"message": "no tools here", "status_code": 422, "code": "no_tools"}
    operation = {
        "mode": "return_error",
        "value": told,
        "conditions": [{"path": "tools.0.type", "value": "function"}],
    }
    world.channel("a", answer(200, chat()), priority=2, param_override={"operations": [operation]})
    world.channel("b", answer(200, chat()), priority=1)
    world.options(RetryTimes=1)
    client = world.ready()

    refused = client.chat(tools=[{"type": "function", "function": {"name": "f"}}])
    allowed = client.chat()

    assert refused.status_code == 422
    assert refused.json()["error"]["code"] == "no_tools"
    assert "no tools here" in refused.json()["error"]["message"]
    assert refused.headers["x-relay-attempts"] == "1"
    assert allowed.status_code == 200


def test_the_rest_of_the_body_arrives_as_it_was_sent(world):
    world.channel("a", answer(200, chat()), model_mapping={"m": "up"}, param_override={"n": 1})

    world.ready().post(
        b'{"model":"m","messages":[ {"role":"user","content":"\\u00e9 \xc3\xa9"} ],"x":1.50}',
        headers={"Content-Type": "application/json"},
    )

    assert world.upstream.seen[0].body == (
        b'{"model":"up","messages":[ {"role":"user","content":"\\u00e9 \xc3\xa9"} ],"x":1.50,"n":1}'
    )
