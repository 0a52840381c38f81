"""What is wrong with a request is said clearly, logged, and changes nothing."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import time
from datetime import timedelta

import pytest
from django.apps import apps
from django.utils import timezone

from relayproject import handler
from tests.support.upstream import answer, chat, error, stream, whole_stream

GOOD = b'{"model": "m", "messages": []}'
CHAT = "/v1/chat/completions"


def everything() -> dict:
    """Return all rows of the project's own tables but the request log."""
    return {
        model._meta.label: list(model.objects.order_by("pk").values())
        for label in ("billing_app", "channels_app", "relay_app")
        for model in apps.get_app_config(label).get_models()
        if model._meta.label not in ("relay_app.RequestLog", "relay_app.Attempt")
    }


class Judge:
    """Sends bad requests and checks what every one of them must get."""

    def __init__(self, world, capfd) -> None:
        self.world = world
        self.client = world.ready()
        self.before = everything()
        self.capfd = capfd

    def check(self, response, status: int, code: str | None, *words: str) -> dict:
        """Assert the answer, the log line and the row; return the error object."""
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        request_id = response.headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{32}", request_id)
        assert response.headers["x-relay-attempts"].isdigit()
        document = response.json()
        assert set(document) == {"error"}
        problem = document["error"]
        assert set(problem) == {"message", "type", "param", "code"}
        assert problem["code"] == code
        assert problem["type"]
        assert problem["message"].endswith(f" (request id: {request_id})")
        for word in words:
            assert word in problem["message"]
        row = self.world.log(request_id)
        assert row.status == status
        assert row.outcome == code or row.outcome.isupper()
        logs = self.capfd.readouterr().err
        assert any(request_id in line and str(status) in line for line in logs.splitlines())
        assert self.client.key not in logs + response.text
        assert self.client.key not in json.dumps(list(type(row).objects.values()), default=str)
        assert everything() == self.before
        return problem


@pytest.fixture
def judge(world, capfd) -> Judge:
    world.channel("a", answer(200, chat()))
    return Judge(world, capfd)


# -- the body ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"", None, "empty"),
        (b"  \n", None, "empty"),
        (b"{", None, "not valid JSON"),
        (b'{"model": "m", "messages": []', None, "not valid JSON"),
        (b"model=m&messages=x", None, "not valid JSON"),
        (b"\xff\xfe\x00", None, "not valid JSON"),
        (b"null", None, "wrong type"),
        (b"[]", None, "wrong type"),
        (b'"text"', None, "wrong type"),
        (b'{"messages": []}', "model", "model is missing"),
        (b'{"model": null, "messages": []}', "model", "model has the wrong type"),
        (b'{"model": 5, "messages": []}', "model", "model has the wrong type"),
        (b'{"model": ["m"], "messages": []}', "model", "model has the wrong type"),
        (b'{"model": "", "messages": []}', "model", "model: the name is empty"),
        (b'{"model": " ", "messages": []}', "model", "model: the name is empty"),
        (b'{"model": "m"}', "messages", "messages is missing"),
        (b'{"model": "m", "messages": null}', "messages", "messages has the wrong type"),
        (b'{"model": "m", "messages": "hi"}', "messages", "messages has the wrong type"),
        (b'{"model": "m", "messages": {}}', "messages", "messages has the wrong type"),
        (b'{"model": "m", "messages": [], "stream": "yes"}', "stream", "stream has the wrong"),
        (b'{"model": "m", "messages": [], "stream": 1}', "stream", "stream has the wrong"),
        (b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "deep"),
    ],
    ids=range(22),
)
def test_a_body_that_cannot_be_used(judge, body, param, words):
    problem = judge.check(judge.client.post(body), 400, "invalid_request", words)

    assert problem["param"] == param
    assert problem["type"] == "invalid_request_error"
    assert judge.world.upstream.seen == []


def test_no_word_of_the_libraries_in_messages(judge):
    for body in (b"{", b'{"model": 5}', b'{"model": "m", "messages": 1}', b'{"model": "m"}'):
        message = judge.client.post(body).json()["error"]["message"]
        assert not re.search(r"msgspec|Traceback|\$|`|Decode", message), message


def test_a_body_that_is_too_large(judge, settings):
    settings.MAX_REQUEST_BODY_BYTES = 2**20
    body = b'{"model": "m", "messages": ["' + b"x" * 2**20 + b'"]}'

    judge.check(judge.client.post(body), 413, "request_too_large", "larger than 1 MB")
    assert judge.world.upstream.seen == []
    assert judge.client.post(GOOD).status_code == 200


def test_a_chunked_body_that_is_too_large(judge, settings):
    settings.MAX_REQUEST_BODY_BYTES = 2**20
    pieces = (b"x" * 65_536 for _ in range(64))

    judge.check(judge.client.post(pieces), 413, "request_too_large", "larger than 1 MB")


def test_a_body_of_just_the_limit(judge, settings):
    settings.MAX_REQUEST_BODY_BYTES = len(GOOD)

    assert judge.client.post(GOOD).status_code == 200
    judge.check(judge.client.post(GOOD + b" "), 413, "request_too_large")


def test_an_endless_body_is_answered_too(judge, settings, monkeypatch):
    """After a while the answer comes though the client still sends."""
    settings.MAX_REQUEST_BODY_BYTES = 1000
    monkeypatch.setattr(handler, "DISCARD_S", 0.1)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {judge.client.key}\r\n"
    with socket.create_connection(address(judge.client)) as endless:
        endless.settimeout(20)
        endless.sendall(head.encode() + b"Content-Length: 1000000000\r\n\r\n")
        received = b""
        endless.setblocking(False)
        for _ in range(2000):
            with contextlib.suppress(BlockingIOError):
                endless.send(b"x" * 10_000)
            with contextlib.suppress(BlockingIOError):
                received += endless.recv(65_536)
            if b"request id" in received:
                break
            time.sleep(0.005)

    assert received.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in received


def address(client) -> tuple[str, int]:
    return "127.0.0.1", int(client.url.rpartition(":")[2])


@pytest.mark.parametrize("encoding", ["br", "nonsense", "gzip, br"])
def test_an_unknown_encoding_is_refused(judge, encoding):
    body = gzip.compress(GOOD)
    response = judge.client.post(body, headers={"Content-Encoding": encoding})

    judge.check(response, 415, "unsupported_content_encoding", encoding.split()[-1])


def test_identity_is_no_compression(judge):
    headers = {"Content-Encoding": "identity"}
    assert judge.client.post(GOOD, headers=headers).status_code == 200


# -- the path ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize("path", ["/v1/nonsense", "/v1/files", "/elsewhere", "/v1/chat/", "/v1"])
def test_an_unknown_path(judge, method, path):
    response = judge.client.http.request(method, path)

    judge.check(response, 404, "unknown_url", f"{method} {path} is no endpoint")


@pytest.mark.parametrize(
    "path",
    ["/v1/%ff%fe", "/v1/%00", "/v1/%0a%0d", "/%", "/v1/%zz", "/v1/chat/completions%20", "/é"],
)
def test_an_odd_path(judge, path):
    response = judge.client.http.get(path)

    judge.check(response, 404, "unknown_url")


@pytest.mark.parametrize(
    "target", [b"/v1/\xff\xfe", b"/v1/models?\xff\xfe", b"*", b"//x", b"http://x/y"]
)
def test_a_target_of_raw_bytes_does_not_hurt(judge, target):
    with socket.create_connection(address(judge.client)) as raw:
        raw.settimeout(20)
        raw.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = raw.recv(65_536)

    assert received.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401", b"HTTP/1.1 404"))
    assert judge.client.post(GOOD).status_code == 200


def test_head_of_an_unknown_path(judge):
    response = judge.client.http.head("/v1/nonsense")

    assert (response.status_code, response.content) == (404, b"")
    assert judge.world.log(response.headers["x-request-id"]).outcome == "unknown_url"


def test_a_very_long_path(judge):
    judge.check(judge.client.http.get("/v1/" + "x" * 5000), 404, "unknown_url")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
def test_a_wrong_method(judge, method):
    response = judge.client.http.request(method, CHAT)

    judge.check(response, 405, "method_not_allowed", f"{method} is not a method of {CHAT}", "POST")


def test_a_wrong_method_for_models(judge):
    response = judge.client.http.post("/v1/models")

    judge.check(response, 405, "method_not_allowed", "use GET")


def test_head_of_a_post_path(judge):
    response = judge.client.http.head(CHAT)

    assert (response.status_code, response.content) == (405, b"")


def test_words_that_are_no_http_do_not_hurt(judge):
    with socket.create_connection(address(judge.client)) as raw:
        raw.settimeout(20)
        raw.sendall(b"BREW /coffee HTCPCP/1.0\r\n\r\n")
        assert raw.recv(65_536).startswith(b"HTTP/1.1 400")

    assert judge.client.post(GOOD).status_code == 200


# -- the token -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic dTpw", "nonsense"])
def test_no_token(judge, path, header):
    headers = {} if header is None else {"Authorization": header}
    del judge.client.http.headers["Authorization"]
    method = "POST" if path == CHAT else "GET"

    response = judge.client.http.request(method, path, content=GOOD, headers=headers)

    problem = judge.check(response, 401, "invalid_api_key", "no token was sent", "Bearer")
    assert problem["type"] == "authentication_error"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["sk-relay-wrong", "x", "é", "sk-relay-" + "y" * 5000])
def test_a_wrong_token(judge, key, capfd):
    header = f"Bearer {key}".encode("latin-1")

    response = judge.client.post(GOOD, headers={"Authorization": header})

    judge.check(response, 401, "invalid_api_key", "the token is wrong")
    if len(key) > 1:
        assert key not in response.text


def test_the_token_is_looked_at_before_the_body(judge):
    response = judge.client.post(b"{", headers={"Authorization": "Bearer sk-relay-wrong"})

    judge.check(response, 401, "invalid_api_key")


def expired(world):
    world.token.expires_at = timezone.now() - timedelta(seconds=1)
    world.token.save()


def disabled(world):
    world.token.is_enabled = False
    world.token.save()


def user_disabled(world):
    world.user.is_active = False
    world.user.save()


def deleted(world):
    world.token.delete()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (expired, "the token is expired"),
        (disabled, "the token is disabled"),
        (user_disabled, "the token is disabled"),
        (deleted, "the token is wrong"),
    ],
)
def test_a_token_that_is_not_valid_any_more(world, capfd, change, words):
    world.channel("a", answer(200, chat()))
    assert world.ready().post(GOOD).status_code == 200
    change(world)
    judge = Judge(world, capfd)

    response = judge.client.post(GOOD)

    judge.check(response, 401, "invalid_api_key", words)
    assert len(world.upstream.seen) == 1


@pytest.mark.parametrize("header", ["x-api-key", "x-goog-api-key"])
def test_tokens_in_other_headers(judge, header):
    del judge.client.http.headers["Authorization"]

    response = judge.client.post(GOOD, headers={header: judge.client.key})

    assert response.status_code == 200
    assert header not in judge.world.upstream.seen[0].headers
    assert judge.client.key not in str(judge.world.upstream.seen[0])


@pytest.mark.parametrize("query", ["key={}", "a=1&key={}", "key={}&a=1", "%6Bey={}", "ke%79={}"])
def test_a_token_in_the_query_is_not_sent_on(judge, query, capfd):
    del judge.client.http.headers["Authorization"]
    key = judge.client.key

    response = judge.client.http.post(f"{CHAT}?{query.format(key)}", content=GOOD)

    assert response.status_code == 200
    target = judge.world.upstream.seen[0].target
    assert target in (f"/a{CHAT}", f"/a{CHAT}?a=1")
    judge.world.log(response.headers["x-request-id"])
    assert key not in capfd.readouterr().err


def test_a_key_in_the_query_beside_a_header_is_not_sent_on_either(judge):
    response = judge.client.http.post(f"{CHAT}?key={judge.client.key}&beta=true", content=GOOD)

    assert response.status_code == 200
    assert judge.world.upstream.seen[0].target == f"/a{CHAT}?beta=true"


@pytest.mark.parametrize(
    "query", ["api_key={}", "KEY={}", "%4bEY=other", "access_token={}", "x=Bearer+{}", "{}=1", "{}"]
)
def test_the_token_is_not_sent_on_under_any_name(judge, query):
    key = judge.client.key
    spelled = "".join(f"%{ord(one):02x}" for one in key)

    for written in (key, spelled):
        judge.client.http.post(f"{CHAT}?a=1&{query.format(written)}&b=2", content=GOOD)

    targets = [seen.target for seen in judge.world.upstream.seen]
    assert targets == [f"/a{CHAT}?a=1&b=2"] * 2


def test_the_name_of_the_key_in_the_query_is_in_lower_case(judge):
    del judge.client.http.headers["Authorization"]

    response = judge.client.http.post(f"{CHAT}?KEY={judge.client.key}", content=GOOD)

    judge.check(response, 401, "invalid_api_key")


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/responses", "/v1/moderations"])
def test_a_byte_order_mark_is_no_part_of_a_body(judge, path):
    judge.client.http.post(path, content=b"\xef\xbb\xbf" + GOOD)

    assert judge.world.upstream.seen[0].body == GOOD


def test_the_rest_of_the_query_is_kept_as_it_came(judge):
    query = "beta=true&x=%C3%A9&y=a+b&empty=&monkey=1"

    judge.client.http.post(f"{CHAT}?{query}", content=GOOD)

    assert judge.world.upstream.seen[0].target == f"/a{CHAT}?{query}"


@pytest.mark.parametrize("query", ["&".join(["a"] * 3000), "%ff=%00", "=&&=", "key", "key=%ff"])
def test_an_odd_query_without_a_token(judge, query):
    del judge.client.http.headers["Authorization"]

    response = judge.client.http.post(f"{CHAT}?{query}", content=GOOD)

    judge.check(response, 401, "invalid_api_key")


def test_the_wrong_token_in_the_query_is_not_logged(judge, capfd):
    del judge.client.http.headers["Authorization"]
    wrong = "sk-relay-wrong-but-long-enough"

    response = judge.client.http.get(f"/v1/models?key={wrong}")

    assert response.status_code == 401
    row = judge.world.log(response.headers["x-request-id"])
    assert wrong not in row.endpoint + row.message + response.text + capfd.readouterr().err


def test_the_token_is_not_shown_to_the_upstream(judge):
    judge.client.post(GOOD)

    assert judge.client.key not in str(judge.world.upstream.seen[0])


# -- the model -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_unknown_model(judge, is_stream):
    response = judge.client.chat("gpt-nonsense", stream=is_stream)

    problem = judge.check(response, 404, "model_not_found", "'gpt-nonsense'", "/v1/models")
    assert problem["param"] == "model"


def test_a_model_of_another_group(world, capfd):
    from channels_app.models import Group

    world.channel("other", answer(200, chat()), model_names=["elsewhere"])
    world.group.channels.clear()
    Group.objects.create(name="vip").channels.set(world.group.channels.model.objects.all())
    judge = Judge(world, capfd)

    response = judge.client.chat("elsewhere")

    judge.check(response, 503, "no_channel_available", "'default'", "'elsewhere'")


@pytest.mark.parametrize(
    ("status", "http_status", "code"),
    [
        ("disabled", 404, "model_not_found"),
        ("auto_disabled", 503, "no_channel_available"),
    ],
)
def test_all_channels_disabled(world, capfd, status, http_status, code):
    for name in ("a", "b"):
        world.channel(name, answer(200, chat()), status=status)
    judge = Judge(world, capfd)

    judge.check(judge.client.chat(), http_status, code, "'m'")


def test_a_model_that_the_token_may_not_use(world, capfd):
    world.channel("a", answer(200, chat()), model_names=["m", "cheap-1"])
    world.token.model_names = ["cheap-*"]
    world.token.save()
    judge = Judge(world, capfd)

    problem = judge.check(judge.client.chat(), 403, "model_not_allowed", "'m'")

    assert problem["type"] == "permission_error"
    assert judge.client.chat("cheap-1").status_code == 200


@pytest.mark.parametrize(
    "name",
    [r"a\u0000b", r"a\ud800b", r"\udfff", "a\u2028b", r"a\nb", "'\\\"<script>", "x" * 10_000, "m "],
    ids=["nul", "surrogate", "low-surrogate", "separator", "newline", "quotes", "long", "space"],
)
def test_an_odd_model_name(judge, name):
    """The row is written whatever the name, on every database."""
    body = b'{"model": "' + name.encode() + b'", "messages": []}'

    response = judge.client.post(body)

    judge.check(response, 404, "model_not_found")
    row = judge.world.log(response.headers["x-request-id"])
    assert "\x00" not in row.request_model
    assert 1 <= len(row.request_model) <= 200


def test_a_lone_surrogate_in_a_message_is_passed_on(judge):
    body = rb'{"model": "m", "messages": [{"role": "user", "content": "a\ud83d"}]}'

    assert judge.client.post(body).status_code == 200
    assert judge.world.upstream.seen[0].body == body


# -- the channel ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base_url",
    ["http://no-such-host.invalid/v1", "http://127.0.0.1:9/v1", "http://[::1]:9/v1"],
)
def test_an_upstream_that_is_not_there(world, capfd, base_url):
    world.channel("a", base_url=base_url)
    judge = Judge(world, capfd)

    judge.check(judge.client.chat(), 502, "upstream_unreachable")


@pytest.mark.parametrize("base_url", ["", "not a url", "http://", "ftp://x/v1", "http://[bad/v1"])
def test_a_base_url_that_is_none(world, capfd, base_url):
    world.channel("a", base_url=base_url)
    judge = Judge(world, capfd)

    problem = judge.check(judge.client.chat(), 502, "upstream_unreachable")

    assert "Traceback" not in problem["message"]


def test_a_key_that_is_no_ascii(world, capfd):
    from channels_app.services import channel_key_add

    channel = world.channel("a", answer(200, chat()))
    channel.keys.all().delete()
    channel_key_add(channel=channel, value="clé-secrète")
    judge = Judge(world, capfd)

    response = judge.client.chat()

    judge.check(response, 502, "upstream_unreachable")
    row = judge.world.log(response.headers["x-request-id"])
    assert row.attempts.get().upstream_code == "channel:invalid_key"


def test_an_unknown_provider_type(world, capfd):
    world.channel("a", answer(200, chat()), provider="nonsense")
    judge = Judge(world, capfd)

    judge.check(judge.client.chat(), 502, "upstream_unreachable")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain words",
        b"<html>",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"error": null}',
        b"[" * 99_999,
    ],
)
def test_an_upstream_error_in_any_form(world, capfd, body):
    world.channel("a", answer(500, body))
    judge = Judge(world, capfd)

    judge.check(judge.client.chat(), 500, None)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"5", b"[]", b"<html>", b"\xff", b'{"choices": 5}', b"[" * 99_999],
)
def test_an_upstream_answer_in_any_form(world, body):
    """Never an error of ours, whatever a 200 holds."""
    world.channel("a", answer(200, body), priority=2)

    response = world.ready().chat()

    assert response.status_code in (200, 502)
    if response.status_code == 502:
        assert response.json()["error"]["code"] != "internal_error"


def test_a_lone_surrogate_in_an_upstream_error(world, capfd):
    world.channel("a", answer(500, rb'{"error": {"message": "a\ud800b\u0000", "code": "\udfff"}}'))
    judge = Judge(world, capfd)

    response = judge.client.chat()

    assert response.status_code == 500
    row = judge.world.log(response.headers["x-request-id"])
    assert row.attempts.get().failure_class == "SERVER"


def test_an_upstream_header_of_many_kilobytes(world):
    headers = {f"x-policy-{n}": "p" * 4000 for n in range(10)}
    world.channel("a", answer(200, chat(), headers=headers))

    assert world.ready().chat().status_code == 200


def test_one_bad_record_does_not_cost_the_others(world):
    """Rows are written in batches; the database may refuse one."""
    world.channel("a", error(400, "x" * 100_000), stream(whole_stream("x")))
    client = world.ready()

    first, second = client.chat(), client.chat(stream=True)

    assert world.log(first.headers["x-request-id"]).status == 400
    assert world.log(second.headers["x-request-id"]).status == 200
