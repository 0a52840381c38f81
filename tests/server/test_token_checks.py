"""A token with allowed addresses works from there and from nowhere else."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from tests.support.upstream import answer, chat

PROXY = {"X-Forwarded-For": "203.0.113.7"}


@pytest.fixture
def allowed(world):
    """Set the token's allowed addresses and return the client."""

    def allow(*texts: object):
        world.channel("a", answer(200, chat()))
        world.token.allow_ips = list(texts)
        world.token.save()
        return world.ready()

    return allow


@pytest.fixture
def trusted(settings):
    settings.TRUSTED_PROXIES = [ip_network("127.0.0.0/8")]


@pytest.mark.parametrize("texts", [[], ["127.0.0.1"], ["10.0.0.0/8", "127.0.0.0/8"]])
def test_an_address_on_the_list_passes(allowed, texts) -> None:
    assert allowed(*texts).chat().status_code == 200


@pytest.mark.parametrize("texts", [["10.0.0.0/8"], ["::1"], ["nonsense"], ["127.0.0.2", "::/0"]])
def test_an_address_off_the_list_is_refused(allowed, world, texts) -> None:
    response = allowed(*texts).chat()

    assert response.status_code == 403
    problem = response.json()["error"]
    assert problem["code"] == "ip_not_allowed"
    assert problem["type"] == "permission_error"
    assert "127.0.0.1" in problem["message"]
    assert world.upstream.seen == []
    row = world.log(response.headers["x-request-id"])
    assert (row.outcome, row.client_ip, row.token_name) == ("ip_not_allowed", "127.0.0.1", "t")


def test_it_is_refused_in_the_dialect_of_the_path(allowed) -> None:
    client = allowed("10.0.0.0/8")

    response = client.messages()

    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"
    assert client.http.get("/v1/models").status_code == 403


def test_the_forwarded_address_is_not_believed_from_anybody(allowed, world) -> None:
    client = allowed("203.0.113.0/24")

    response = client.http.get("/v1/models", headers=PROXY)

    assert response.status_code == 403
    assert world.log(response.headers["x-request-id"]).client_ip == "127.0.0.1"


def test_the_forwarded_address_counts_from_a_trusted_proxy(allowed, world, trusted) -> None:
    client = allowed("203.0.113.0/24")

    response = client.http.get("/v1/models", headers=PROXY)

    assert response.status_code == 200
    assert world.log(response.headers["x-request-id"]).client_ip == "203.0.113.7"
    elsewhere = client.http.get("/v1/models", headers={"X-Forwarded-For": "198.51.100.1"})
    assert elsewhere.status_code == 403
    assert client.http.get("/v1/models").status_code == 403


@pytest.mark.parametrize("forwarded", ["unknown", "203.0.113.7, x", "<script>", "203.0.113.7/0"])
def test_a_malformed_address_never_passes(allowed, world, trusted, forwarded) -> None:
    """Not even where the list has every address, the proxy's included."""
    client = allowed("0.0.0.0/0", "::/0")

    response = client.http.get("/v1/models", headers={"X-Forwarded-For": forwarded})

    assert response.status_code == 403
    assert forwarded not in response.text
    assert world.log(response.headers["x-request-id"]).client_ip == ""


def test_several_forwarded_headers_are_one_chain(allowed, trusted) -> None:
    client = allowed("203.0.113.0/24")
    headers = [("X-Forwarded-For", "198.51.100.1"), ("X-Forwarded-For", "203.0.113.7")]

    assert client.http.get("/v1/models", headers=headers).status_code == 200


def test_a_second_model_does_not_pass_the_models_of_a_token(allowed, world) -> None:
    client = allowed()
    world.token.models = ["m"]
    world.ready()

    response = client.post(b'{"model":"other","messages":[],"model":"m"}')

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"
    assert response.json()["error"]["message"].startswith("model is given 2 times; send it once")
    assert not world.upstream.seen


def test_a_token_in_the_header_of_midjourney_proxies(allowed, world) -> None:
    client = allowed()
    del client.http.headers["Authorization"]

    response = client.http.post(
        "/v1/chat/completions",
        json={"model": "m", "messages": []},
        headers={"mj-api-secret": client.key},
    )

    assert response.status_code == 200
    assert client.key not in str(world.upstream.seen[0])
