"""Money through the real server: what is reserved, charged and given back, and what refuses."""

from __future__ import annotations

import concurrent.futures
import threading
from decimal import Decimal
from typing import Any

import pytest
from django.db import OperationalError

from billing_app import ledger_writer, tasks, trust
from tests.support import anthropic as a
from tests.support.upstream import answer, error, reset, stream
from tests.support.upstream import chat as plain_chat

NANO = 10**9
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 30},
}
# Nano-dollars a token are a thousand times USD per million tokens.
COST = (600 * 2000) + (400 * 500) + (70 * 8000) + (30 * 10000)


def chat(text: str = "hello", *, usage: dict[str, Any] | None = None) -> dict[str, Any]:
    document = plain_chat(text)
    return {**document, "usage": usage} if usage else document


def priced(world: Any, model: str = "m", **prices: object) -> Any:
    from billing_app.models import Price

    values = {name: Decimal(str(value)) for name, value in prices.items()}
    return Price.objects.create(model=model, **values)


def tokens_priced(world: Any) -> None:
    priced(world, input=2, cached_input="0.5", output=8, reasoning_output=10)


def pay_in(world: Any, usd: str = "5", user: Any = None) -> None:
    from billing_app.services import wallet_credit

    amount = int(Decimal(usd) * NANO)
    wallet_credit(user_id=(user or world.user).pk, amount_nusd=amount, reason="test")


def wallet(world: Any) -> tuple[int, int, int]:
    from billing_app.models import Wallet

    world.relay.flush()
    found = Wallet.objects.get(user=world.user)
    return found.available_nusd, found.reserved_nusd, found.spent_nusd


def refund_all() -> int:
    return tasks.refund_due_sessions()


def entries(world: Any) -> list[tuple[str, int]]:
    from billing_app.models import LedgerEntry

    world.relay.flush()
    return list(LedgerEntry.objects.order_by("pk").values_list("kind", "amount_nusd"))


def assert_books_are_right() -> None:
    from billing_app.audit import audit

    assert audit() == []


@pytest.fixture(autouse=True)
def _priced_only(world):
    world.options(AllowUnpricedModels=False, TrustQuota="0")


def test_an_answer_is_charged_exactly_and_the_rest_of_the_reservation_comes_back(world):
    tokens_priced(world)
    pay_in(world)
    world.channel("a", answer(200, chat(usage=USAGE)))

    response = world.ready().chat(max_tokens=10_000)

    # max(500, the prompt) times 2 USD and 4096 times 8 USD per million
    reserved = 500 * 2000 + 4096 * 8000
    assert response.status_code == 200
    assert wallet(world) == (5 * NANO - COST, 0, COST)
    assert entries(world)[1:] == [("reserve", -reserved), ("settle", reserved - COST)]
    log = world.log(response.headers["x-request-id"])
    assert (log.cost_nusd, log.billing, log.billed_model) == (COST, "settled", "m")
    assert_books_are_right()


def test_streams_are_charged_for_the_usage_that_they_report(world):
    tokens_priced(world)
    pay_in(world)
    body = [
        b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":100}}\n\n',
        b"data: [DONE]\n\n",
    ]
    world.channel("a", stream(body))

    world.ready().chat(stream=True)

    assert wallet(world)[2] == 1000 * 2000 + 100 * 8000
    assert_books_are_right()


def test_a_stream_that_breaks_is_charged_for_what_was_sent(world):
    tokens_priced(world)
    pay_in(world)
    text = b"x" * 400
    begun = b'data: {"choices":[{"index":0,"delta":{"content":"' + text + b'"}}]}\n\n'
    world.channel("a", stream([begun], end="cut"))

    response = world.ready().chat(stream=True)

    available, reserved, spent = wallet(world)
    prompt = len(world.upstream.seen[0].body) // 4
    assert abs(spent - (prompt * 2000 + 100 * 8000)) <= 10 * 2000
    assert (reserved, available) == (0, 5 * NANO - spent)
    assert world.log(response.headers["x-request-id"]).cost_nusd == spent
    assert_books_are_right()


def test_a_client_that_leaves_before_the_first_token_pays_nothing(world):
    tokens_priced(world)
    pay_in(world)
    seen = threading.Event()

    async def hang(connection):
        seen.set()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: x\n\n")
        import asyncio

        await asyncio.sleep(30)

    world.channel("a", hang)
    client = world.ready()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(_ask_and_leave, client, seen)
        asked.result()
    assert world.upstream.seen[0].closed.wait(3)
    wallet(world)
    refund_all()

    assert wallet(world) == (5 * NANO, 0, 0)
    assert_books_are_right()


def _ask_and_leave(client: Any, seen: threading.Event) -> None:
    import socket
    from urllib.parse import urlsplit

    address = urlsplit(client.url)
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
    with socket.create_connection((address.hostname, address.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + client.key.encode() + b"\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        assert seen.wait(5)


@pytest.mark.parametrize("action", [error(500), error(400), reset()], ids=["500", "400", "reset"])
def test_a_failed_request_costs_nothing(world, action):
    tokens_priced(world)
    pay_in(world)
    world.channel("a", action)

    response = world.ready().chat()

    assert response.status_code >= 400
    wallet(world)
    assert refund_all() == 1
    assert refund_all() == 0
    assert wallet(world) == (5 * NANO, 0, 0)
    assert [kind for kind, _ in entries(world)] == ["top_up", "reserve", "refund"]
    assert world.log(response.headers["x-request-id"]).billing == "refunded"
    assert_books_are_right()


@pytest.mark.parametrize(
    ("ask", "code_of"),
    [
        (lambda c: c.chat(), lambda r: r.json()["error"]["code"]),
        (lambda c: c.messages(), lambda r: r.json()["error"]["details"]["error_code"]),
        (
            lambda c: c.http.post(
                "/v1beta/models/m:generateContent",
                json={"contents": [{"parts": [{"text": "hi"}]}]},
                headers={"x-goog-api-key": c.key},
            ),
            lambda r: r.json()["error"]["details"][0]["reason"].lower(),
        ),
    ],
    ids=["openai", "anthropic", "gemini"],
)
def test_too_little_money_is_told_before_any_upstream_is_asked(world, ask, code_of):
    tokens_priced(world)
    pay_in(world, "0.0001")
    for provider in ("openai", "anthropic", "gemini"):
        world.channel(provider, answer(200, chat()), provider=provider)

    response = ask(world.ready())

    assert response.status_code == 403
    assert code_of(response) == "insufficient_quota"
    assert "the account has $0.0001 left" in response.text
    assert world.upstream.seen == []
    assert wallet(world) == (100_000, 0, 0)
    assert world.log(response.headers["x-request-id"]).stop_reason == "not covered"


def test_a_model_without_a_price_is_refused_unless_that_is_allowed(world):
    world.channel("a", answer(200, chat()))
    client = world.ready()

    refused = client.chat()
    world.options(AllowUnpricedModels=True)
    served = world.ready().chat()

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_price_missing")
    assert served.status_code == 200
    assert world.log(refused.headers["x-request-id"]).stop_reason == "no price"
    log = world.log(served.headers["x-request-id"])
    assert (log.cost_nusd, log.billing) == (0, "unpriced")
    assert entries(world) == []


def test_per_call_prices_count_the_answers_asked_for(world):
    priced(world, per_call="0.05")
    pay_in(world)
    world.channel("a", answer(200, chat(usage=USAGE)))
    client = world.ready()

    client.chat()
    client.chat(n=3)

    assert wallet(world)[2] == 4 * 50_000_000


def test_ratios_of_the_group_and_of_the_users_group(world):
    tokens_priced(world)
    pay_in(world)
    world.group.ratio = Decimal("0.8")
    world.group.save()
    world.channel("a", answer(200, chat(usage=USAGE)))

    world.ready().chat()
    spent = wallet(world)[2]
    world.options(GroupGroupRatio={"default": {"default": "0.5"}})
    world.ready().chat()

    assert spent == COST * 8 // 10
    assert wallet(world)[2] - spent == COST // 2


def test_anthropic_and_gemini_usage(world):
    priced(world, input=3, cached_input="0.3", cache_write="3.75", cache_write_1h=6, output=15)
    pay_in(world)
    usage = {
        "input_tokens": 100,
        "output_tokens": 10,
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": 300,
        "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100},
    }
    world.channel("a", answer(200, a.message(usage=usage)), provider="anthropic")

    world.ready().messages()

    want = 100 * 3000 + 1000 * 300 + 200 * 3750 + 100 * 6000 + 10 * 15000
    assert wallet(world)[2] == want


def test_another_model_that_answers_is_billed(world):
    priced(world, "m", per_call=1)
    priced(world, "other", per_call=2)
    pay_in(world)
    world.channel("a", error(500))
    world.channel("b", answer(200, chat()), model_names=["other"])
    world.options(ModelFallbacks={"m": ["other"]})

    response = world.ready().chat()

    assert response.status_code == 200
    assert wallet(world) == (3 * NANO, 0, 2 * NANO)
    kinds = [kind for kind, _ in entries(world)]
    assert kinds == ["top_up", "reserve", "reserve", "settle"]


def test_a_dearer_attempt_that_is_not_covered_is_not_made(world):
    priced(world, "m", per_call=1)
    priced(world, "other", per_call=20)
    pay_in(world)
    world.channel("a", error(500, message="broken"))
    world.channel("b", answer(200, chat()), model_names=["other"])
    world.options(ModelFallbacks={"m": ["other"]})

    response = world.ready().chat()

    assert response.status_code == 500
    assert "broken" in response.text
    assert world.upstream.names() == ["a"]
    wallet(world)
    refund_all()
    assert wallet(world) == (5 * NANO, 0, 0)


def test_a_fallback_is_no_way_around_a_price(world):
    priced(world, "dear", per_call=20)
    priced(world, "cheap", per_call=1)
    pay_in(world)
    world.channel("a", answer(200, chat()), model_names=["dear", "cheap", "unpriced"])
    world.options(ModelFallbacks={"dear": ["cheap"], "unpriced": ["cheap"]}, RetryTimes=3)
    client = world.ready()

    too_dear, unpriced = client.chat("dear"), client.chat("unpriced")

    assert (too_dear.status_code, unpriced.status_code) == (403, 400)
    assert "model_price_missing" in unpriced.text
    assert world.upstream.seen == []
    assert wallet(world) == (5 * NANO, 0, 0)


def test_a_fallback_without_a_price_is_passed_over(world):
    priced(world, "m", per_call=1)
    priced(world, "cheap", per_call="0.5")
    pay_in(world)
    world.channel("a", error(500))
    world.channel("b", answer(200, chat()), model_names=["unpriced", "cheap"])
    world.options(ModelFallbacks={"m": ["unpriced", "cheap"]}, RetryTimes=3)

    response = world.ready().chat()

    assert response.status_code == 200
    assert world.upstream.names() == ["a", "b"]
    assert wallet(world) == (4 * NANO + NANO // 2, 0, NANO // 2)


def groups_of(world: Any, **ratios: str) -> list[Any]:
    from channels_app.models import Group

    groups = [Group.objects.create(name=name, ratio=ratio) for name, ratio in ratios.items()]
    world.token.group, world.token.cross_group_retry = "auto", True
    world.token.save()
    world.options(AutoGroups=list(ratios))
    return groups


def only_in(channel: Any, *groups: Any) -> None:
    channel.groups.set(groups)


def test_each_dearer_group_is_asked_that_the_money_suffices_for(world):
    priced(world, per_call="0.001")
    pay_in(world, "0.00105")
    first, second, third = groups_of(world, g1="1", g2="1.1", g3="1.04")
    only_in(world.channel("x1", error(500)), first)
    only_in(world.channel("x2", answer(200, chat("two"))), second)
    only_in(world.channel("x3", answer(200, chat("three"))), third)
    world.options(RetryTimes=3)

    response = world.ready().chat()

    assert response.status_code == 200
    assert world.upstream.names() == ["x1", "x3"]
    assert wallet(world) == (10_000, 0, 1_040_000)


def test_an_empty_answer_costs_what_its_own_model_and_group_cost(world):
    priced(world, "m", input=1)
    priced(world, "dear", input=50)
    pay_in(world)
    empty = chat(text="", usage={"prompt_tokens": 1000})
    world.channel("a", answer(200, empty))
    world.channel("b", reset(), model_names=["dear"])
    world.options(ModelFallbacks={"m": ["dear"]}, RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 200
    assert set(world.upstream.names()) == {"a", "b"}
    assert wallet(world)[2] == 1_000_000
    log = world.log(response.headers["x-request-id"])
    assert (log.billed_model, log.group) == ("m", "default")


def test_a_price_of_the_answer_alone_needs_money_too(world):
    """Nothing is known of the cost before, but who has nothing gets nothing."""
    priced(world, input=0, output=10)
    pay_in(world, "0.0005")
    world.channel("a", answer(200, chat(usage={"prompt_tokens": 5, "completion_tokens": 100})))
    client = world.ready()

    statuses = [client.chat().status_code for _ in range(3)]

    assert statuses == [200, 403, 403]
    assert wallet(world) == (-500_000, 0, 1_000_000)


def test_an_absurd_usage_has_an_end(world):
    priced(world, input=1_000_000, output=1_000_000)
    pay_in(world, "9000000")
    absurd = {"prompt_tokens": 2**31 - 1, "completion_tokens": 2**31 - 1}
    world.channel("a", answer(200, chat(usage=absurd)))

    response = world.ready().chat()

    assert response.status_code == 200
    assert wallet(world) == (8 * 10**15, 0, 10**15)
    assert world.log(response.headers["x-request-id"]).cost_nusd == 10**15
    assert_books_are_right()


@pytest.mark.parametrize("how", ["previous response", "channel of the token"])
def test_a_bound_request_is_charged_by_the_ratio_of_its_own_group(world, how):
    from tests.support.speakers import Responses

    priced(world, per_call="0.1")
    pay_in(world)
    [other] = groups_of(world, aaa="7")
    world.token.group = "default"
    if how == "channel of the token":
        world.user.is_staff = True
        world.user.save()
        world.token.specific_channel = "a"
    world.token.save()
    body = {**Responses().whole("hello", "m"), "id": "resp_made"}
    channel = world.channel("a", answer(200, body))
    channel.groups.add(other)
    client = world.ready()

    def ask(**fields: Any) -> int:
        sent = {"model": "m", "input": "hi", **fields}
        return client.http.post("/v1/responses", json=sent).status_code

    assert ask() == 200
    assert ask(previous_response_id="resp_made") == 200
    assert wallet(world)[2] == 2 * NANO // 10


def test_limits_of_a_token(world):
    priced(world, per_call=1)
    pay_in(world, "100")
    world.channel("a", answer(200, chat()))
    world.token.is_unlimited, world.token.limit_nusd = False, 2 * NANO
    world.token.save()
    client = world.ready()

    statuses = [client.chat().status_code for _ in range(3)]
    refused = client.chat()

    assert statuses == [200, 200, 403]
    assert "this token's limit leaves $0.00" in refused.text
    assert wallet(world) == (98 * NANO, 0, 2 * NANO)


@pytest.mark.parametrize("period", ["daily", "monthly"])
def test_daily_and_monthly_limits(world, period):
    priced(world, per_call=1)
    pay_in(world, "100")
    world.channel("a", answer(200, chat()))
    setattr(world.token, f"{period}_limit_nusd", 2 * NANO)
    world.token.save()
    world.options(TrustQuota="1")  # such a token is never trusted
    client = world.ready()

    statuses = [client.chat().status_code for _ in range(3)]

    assert statuses == [200, 200, 403]
    assert f"{period} limit" in client.chat().text


def test_trusted_requests_are_only_charged_afterwards(world):
    tokens_priced(world)
    pay_in(world, "20")
    world.options(TrustQuota="10")
    world.channel("a", answer(200, chat(usage=USAGE)))

    response = world.ready().chat()

    assert response.status_code == 200
    assert wallet(world) == (20 * NANO - COST, 0, COST)
    assert [kind for kind, _ in entries(world)] == ["top_up", "settle"]
    assert_books_are_right()


def test_a_violation_fee_is_charged_after_the_refund(world):
    tokens_priced(world)
    pay_in(world)
    world.options(
        ViolationFeeEnabled=True, ViolationFee="0.05", ViolationMarkers="violates our policy"
    )
    world.channel("a", error(400, message="This prompt violates our policy."))

    response = world.ready().chat()

    assert response.status_code == 400
    assert wallet(world) == (5 * NANO - 50_000_000, 0, 50_000_000)
    assert [kind for kind, _ in entries(world)] == ["top_up", "reserve", "refund", "fee"]
    assert world.log(response.headers["x-request-id"]).billing == "fee"
    assert_books_are_right()


def test_an_empty_answer_that_is_passed_on_is_settled(world):
    tokens_priced(world)
    pay_in(world)
    world.channel("a", answer(200, chat(text="", usage={"prompt_tokens": 10})))

    response = world.ready().chat()

    assert response.status_code == 200
    assert wallet(world)[2] == 10 * 2000
    assert_books_are_right()


def test_free_endpoints_need_no_money(world):
    world.channel("a", answer(200, {"input_tokens": 3}), provider="anthropic")
    client = world.ready()

    counted = client.http.post(
        "/v1/messages/count_tokens",
        json={"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        headers={"x-api-key": client.key},
    )

    assert counted.status_code == 200
    assert client.http.get("/v1/models").status_code == 200


def test_exactly_as_many_requests_are_served_as_there_is_money_for(world):
    priced(world, per_call="0.01")
    pay_in(world, "1")
    world.channel("a", answer(200, chat()))
    client = world.ready()

    with concurrent.futures.ThreadPoolExecutor(max_workers=64) as pool:
        statuses = list(pool.map(lambda _: client.chat().status_code, range(500)))

    assert statuses.count(200) == 100
    assert statuses.count(403) == 400
    assert wallet(world) == (0, 0, NANO)
    assert_books_are_right()


def test_trusted_requests_at_once_stay_within_the_bound(world):
    """Overdraft < balance - quota + one estimate, for one process (spec 04 section 3)."""
    priced(world, per_call="0.05")
    pay_in(world, "11")
    world.options(TrustQuota="10")
    world.channel("a", answer(200, chat()))
    client = world.ready()

    with concurrent.futures.ThreadPoolExecutor(max_workers=64) as pool:
        statuses = list(pool.map(lambda _: client.chat().status_code, range(1000)))

    served = statuses.count(200)
    available, _, spent = wallet(world)
    assert spent == served * 50_000_000
    assert served + statuses.count(403) == 1000
    assert available >= -(1 * NANO + 50_000_000)
    assert_books_are_right()


@pytest.fixture
def database_away(monkeypatch):
    """The database as billing knows it, gone until the event is cleared."""
    is_away = threading.Event()

    def unless_away(work):
        def run(*args: Any, **kwargs: Any) -> Any:
            if is_away.is_set():
                raise OperationalError("connection refused")
            return work(*args, **kwargs)

        return run

    monkeypatch.setattr(ledger_writer, "run_batch", unless_away(ledger_writer.run_batch))
    monkeypatch.setattr(trust, "_balances_of", unless_away(trust._balances_of))
    monkeypatch.setattr(ledger_writer, "RESERVE_S", 0.2)
    monkeypatch.setattr(trust, "READ_AGAIN_S", 0.0)
    yield is_away
    is_away.clear()


@pytest.mark.parametrize(("ask", "provider"), [("chat", "openai"), ("messages", "anthropic")])
def test_without_the_database_who_must_reserve_is_told_to_come_back(
    world, database_away, ask, provider
):
    tokens_priced(world)
    pay_in(world)
    world.channel("a", answer(200, chat(usage=USAGE)), provider=provider)
    client = world.ready()
    database_away.set()

    response = getattr(client, ask)()
    asked = len(world.upstream.seen)
    database_away.clear()

    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert "x-should-retry" not in response.headers
    assert "the accounts can't be reached now" in response.text
    assert "billing_unavailable" in response.text
    assert asked == 0
    assert wallet(world) == (5 * NANO, 0, 0)
    assert getattr(client, ask)().status_code == 200
    assert_books_are_right()


def test_without_the_database_trusted_requests_go_on_and_are_charged_afterwards(
    world, database_away
):
    tokens_priced(world)
    pay_in(world, "20")
    world.options(TrustQuota="10")
    world.channel("a", answer(200, chat(usage=USAGE)))
    client = world.ready()
    client.chat()  # the balance is known from now on
    world.relay.flush()
    database_away.set()

    statuses = [client.chat().status_code for _ in range(20)]
    database_away.clear()

    assert statuses == [200] * 20
    assert wallet(world) == (20 * NANO - 21 * COST, 0, 21 * COST)
    assert_books_are_right()


def test_without_a_broker_refunds_are_done_by_the_next_beat(world, monkeypatch):
    def no_broker(**_: Any) -> None:
        raise ConnectionError("connection refused")

    tokens_priced(world)
    pay_in(world)
    world.channel("a", error(500))
    monkeypatch.setattr(tasks.refund_due_sessions, "apply_async", no_broker)
    client = world.ready()

    status = client.chat().status_code

    assert status == 500
    available, reserved, _ = wallet(world)
    assert available + reserved == 5 * NANO
    assert reserved > 0
    tasks.reap_sessions()
    assert wallet(world) == (5 * NANO, 0, 0)
    assert_books_are_right()


def test_usage_of_a_token(world):
    tokens_priced(world)
    pay_in(world)
    world.token.is_unlimited, world.token.limit_nusd = False, NANO
    world.token.save()
    world.channel("a", answer(200, chat(usage=USAGE)))
    client = world.ready()
    client.chat()
    world.relay.flush()

    def get(path: str) -> Any:
        return client.http.get(path)

    usage = get("/v1/usage").json()
    subscription = get("/v1/dashboard/billing/subscription").json()
    spending = get("/v1/dashboard/billing/usage?start_date=2020-01-01&end_date=2120-01-01")

    assert usage["object"] == "usage"
    assert usage["spent_nusd"] == COST
    assert usage["spent_usd"] == "0.00226"
    assert usage["reserved_nusd"] == 0
    assert usage["available_nusd"] == NANO - COST
    assert usage["wallet_available_nusd"] == 5 * NANO - COST
    assert Decimal(str(subscription["hard_limit_usd"])) == 1
    for_ever = get("/v1/dashboard/billing/usage?start_date=0001-01-01&end_date=9999-12-31")
    assert for_ever.text == spending.text
    assert spending.text == '{"object":"list","daily_costs":[],"total_usage":0.226}'


def test_codes_pay_in_once(world):
    from billing_app.services import codes_create

    [code] = codes_create(batch="b", count=1, amount_nusd=3 * NANO)
    client = world.ready()

    def redeem(what: object) -> Any:
        return client.http.post("/v1/redeem", json=what)

    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        statuses = sorted(r.status_code for r in pool.map(redeem, [{"code": code}] * 8))

    assert statuses == [200] + [400] * 7
    assert wallet(world) == (3 * NANO, 0, 0)
    assert "this account has redeemed this code already" in redeem({"code": code}).text
    [too_much] = codes_create(batch="b", count=1, amount_nusd=2**63 - 1)
    assert redeem({"code": too_much}).status_code == 400
    assert redeem({"code": 7}).status_code == 400
    assert redeem([]).status_code == 400
    assert entries(world) == [("redemption", 3 * NANO)]
    assert_books_are_right()
