"""The simulated upstream behind the real server: answers, streams and faults, both dialects."""

from __future__ import annotations

import pytest

from tests.server.test_money import pay_in, priced, wallet
from tests.support.anthropic import assert_told, events_of
from tests.support.speakers import Anthropic, Gemini, OpenAI, documents


def simulated(world, model):
    world.channel("s", provider="simulated", base_url="", model_names=["sim*"])
    return world.ready(), model


@pytest.mark.parametrize("model", ["sim", "sim-chunks-7", "sim-empty"])
def test_the_simulated_upstream_speaks_both_dialects(world, model):
    client, model = simulated(world, model)

    whole = client.messages(model)
    streamed = client.messages(model, stream=True)
    chat_answer = client.chat(model)
    chat_stream = client.chat(model, stream=True)

    is_empty = model == "sim-empty"
    assert (whole.json()["type"], whole.json()["model"]) == ("message", model)
    assert (whole.json()["content"] == []) == is_empty
    events = events_of(streamed)
    texts = [e["delta"]["text"] for name, e in events if name == "content_block_delta"]
    assert "".join(texts).startswith("" if is_empty else "Hello from channel s. ")
    assert len(texts) == {"sim": 4, "sim-chunks-7": 7, "sim-empty": 0}[model]
    assert [name for name, _ in events[-2:]] == ["message_delta", "message_stop"]
    assert chat_answer.json()["object"] == "chat.completion"
    assert chat_stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("asks", [True, False])
def test_a_simulated_chat_stream_tells_its_usage_as_openais_does(world, asks):
    client, model = simulated(world, "sim-chunks-3")
    options = {"stream_options": {"include_usage": True}} if asks else {}

    chunks = documents(client.chat(model, stream=True, **options).content)

    counted = {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}
    if asks:
        last = chunks.pop()
        assert (last["choices"], last["usage"]) == ([], counted)
        assert last.keys() == chunks[0].keys()
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["stop"]
    assert [chunk["usage"] for chunk in chunks] == [None] * 5


@pytest.mark.parametrize("speaker", [OpenAI(), Anthropic(), Gemini()], ids=lambda s: s.name)
@pytest.mark.parametrize("behaviour", ["", "chunks-7"])
def test_a_simulated_answer_costs_the_same_whole_or_streamed(world, speaker, behaviour):
    world.options(AllowUnpricedModels=False, TrustQuota="0")
    priced(world, input=2, output=10)
    pay_in(world)
    settings = {"behaviour": behaviour}
    name = "a channel of some words"
    world.channel(name, provider="simulated", base_url="", settings=settings)
    client = world.ready()

    whole, streamed = (speaker.ask(client, is_stream=streams) for streams in (False, True))

    words = 7 if behaviour else len(f"Hello from channel {name}.".split())
    for response in (whole, streamed):
        assert world.log(response.headers["x-request-id"]).cost_nusd == 8 * 2000 + words * 10000
    assert wallet(world)[2] == 2 * (8 * 2000 + words * 10000)


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("sim-status-429", (429, "rate_limit_error")),
        ("sim-status-503", (503, "overloaded_error")),
        ("sim-error", (502, "overloaded_error")),
        ("sim-refuse", (502, "api_error", "upstream_unreachable")),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_faults_of_the_simulated_upstream(world, model, error, is_stream):
    client, model = simulated(world, model)

    assert_told(client.messages(model, stream=is_stream), *error)


def test_a_simulated_break(world):
    client, model = simulated(world, "sim-cut-2")

    response = client.messages(model, stream=True)

    assert [name for name, _ in events_of(response)][-1] == "error"
    assert_told(client.messages(model), 502, "api_error", "upstream_unreachable")
