"""How much a model wrote, where no usage is told: the same in every dialect, whole or streamed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.core.sse import read_event
from relay_app.dialects.openai_base import read_object
from relay_app.dialects.registry import DIALECTS
from relay_app.dialects.written import written_bytes
from tests.support import anthropic, gemini
from tests.support.speakers import data
from tests.support.wire import recordings

TOOL = {"city": "Zürich", "days": [1, 2]}
ARGUMENTS = json.dumps(TOOL, ensure_ascii=False)
TOOL_BYTES = len("weather") + len(ARGUMENTS.encode())


def chat(name="openai", **fields):
    """Return a whole answer and the events of a stream, of this message or text."""
    usual = {"index": 0, "finish_reason": "stop"}
    is_text = "text" in fields
    whole = {"choices": [{**usual, **(fields if is_text else {"message": fields})}]}
    begun = {"index": 0, **(fields if is_text else {"delta": fields})}
    return name, whole, [{"choices": [begun]}, {"choices": [{**usual, "delta": {}}]}]


def message(block, *deltas):
    whole = anthropic.message(content=[block])
    del whole["usage"]
    empty = {name: "" if isinstance(value, str) else {} for name, value in block.items()}
    begun = {**empty, **{n: block[n] for n in ("type", "id", "name") if n in block}}
    events = [{"type": "content_block_start", "index": 0, "content_block": begun}]
    events += [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    return "anthropic", whole, events


def response(item, kind, *deltas):
    whole = {"status": "completed", "output": [item]}
    begun = {"id": "i", "type": item["type"], **({"name": item["name"]} if "name" in item else {})}
    events = [
        {"type": "response.output_item.added", "item": begun},
        *({"type": f"response.{kind}.delta", "delta": delta} for delta in deltas),
        {"type": f"response.{kind}.done", "text": "".join(deltas), "arguments": "".join(deltas)},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return "openai_responses", whole, events


def content(*parts):
    end = gemini.said(reason="STOP")
    return "gemini", gemini.said(*parts, reason="STOP"), [*map(gemini.said, parts), end]


def texts(text):
    """Return an answer of this text in each dialect that writes texts."""
    half = len(text) // 2
    halves = text[:half], text[half:]
    part = {"type": "output_text", "text": text, "annotations": [{"url": "https://x"}]}
    transcript = [{"type": "transcript.text.delta", "delta": half} for half in halves]
    done = {"type": "transcript.text.done", "text": text}
    return [
        chat(role="assistant", content=text),
        chat(content=[{"type": "text", "text": text}]),
        chat("openai_completions", text=text),
        message(
            {"type": "text", "text": text},
            *({"type": "text_delta", "text": half} for half in halves),
        ),
        response({"type": "message", "content": [part]}, "output_text", *halves),
        content(*({"text": half} for half in halves)),
        ("openai_transcriptions", {"text": text, "language": "x"}, [*transcript, done]),
    ]


def counts(case, **options):
    """Return the bytes of a whole answer and those of a stream."""
    name, whole, documents = case
    dialect = DIALECTS[name]
    events = [data(d).replace(b"data: ", b"") for d in documents]
    if options:
        events = [json.dumps(document, **options).encode() for document in documents]
    facts = dialect.read_answer(json.dumps(whole, **options).encode())
    assert facts.usage is None
    return facts.output_bytes, sum(dialect.read_event(e, b"").output_bytes for e in events)


@pytest.mark.parametrize("is_escaped", [False, True], ids=["plain", "escaped"])
@pytest.mark.parametrize("text", ["Hi", "Grüße", 'say "no"\n\tto C:\\x', "日本語 😀"])
def test_a_text_counts_the_same_in_every_dialect(text, is_escaped):
    size = len(text.encode())

    for case in texts(text):
        assert counts(case, ensure_ascii=is_escaped) == (size, size), case[0]


@given(text=st.text(min_size=1, max_size=40))
def test_any_text_counts_as_its_bytes(text):
    size = len(text.encode())

    for case in texts(text):
        assert counts(case) == (size, size)


THOUGHT = "hm, né"
THOUGHTS = [
    chat(reasoning_content=THOUGHT),
    chat(reasoning=THOUGHT),
    chat(reasoning=THOUGHT, reasoning_details=[{"type": "reasoning.text", "text": THOUGHT}]),
    chat(reasoning_details=[{"type": "reasoning.text", "text": THOUGHT, "signature": "s" * 99}]),
    chat(content=[{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}]),
    message(
        {"type": "thinking", "thinking": THOUGHT, "signature": "s" * 99},
        {"type": "thinking_delta", "thinking": THOUGHT},
        {"type": "signature_delta", "signature": "s" * 99},
    ),
    response(
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": THOUGHT}],
            "encrypted_content": "s" * 99,
        },
        "reasoning_summary_text",
        THOUGHT,
    ),
    content({"text": THOUGHT, "thought": True, "thoughtSignature": "s" * 99}),
]


@pytest.mark.parametrize("case", THOUGHTS)
def test_thoughts_count_once_and_their_signatures_do_not(case):
    size = len(THOUGHT.encode())

    assert counts(case) == (size, size)


CALLED = {"name": "weather", "arguments": ARGUMENTS}
CALLS = [
    chat(tool_calls=[{"index": 0, "id": "c" * 40, "type": "function", "function": CALLED}]),
    chat(content=None, function_call=CALLED),
    message(
        {"type": "tool_use", "id": "t" * 40, "name": "weather", "input": TOOL},
        *({"type": "input_json_delta", "partial_json": half} for half in ("", ARGUMENTS)),
    ),
    response(
        {"type": "function_call", "call_id": "c" * 40, **CALLED},
        "function_call_arguments",
        ARGUMENTS[:9],
        ARGUMENTS[9:],
    ),
    content({"functionCall": {"id": "c" * 40, "name": "weather", "args": TOOL}}),
]


@pytest.mark.parametrize("case", CALLS)
def test_calls_of_tools_count_by_name_and_arguments(case):
    assert counts(case) == (TOOL_BYTES, TOOL_BYTES)


RESULT = {"type": "web_search_tool_result", "tool_use_id": "t", "content": [{"text": "found"}]}


@pytest.mark.parametrize(
    "case",
    [
        chat(content="", audio={"id": "a", "data": "UklGRg==" * 9}),
        message(RESULT),
        content({"inlineData": {"mimeType": "image/png", "data": "iVBO" * 9}}),
        content({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}),
        response({"type": "image_generation_call", "result": "iVBO" * 9}, "x"),
        response({"type": "mcp_list_tools", "tools": [{"name": "x"}]}, "x"),
        ("openai_images", {"data": [{"b64_json": "iVBO" * 9}]}, []),
        ("openai_embeddings", {"data": [{"embedding": [0.1] * 9}]}, []),
        ("openai_rerank", {"results": [{"index": 0, "document": {"text": "x"}}]}, []),
        ("openai_speech", {"audio_data": "SUQz" * 9}, [{"type": "x.delta", "audio": "SUQz" * 9}]),
        ("gemini_embeddings", {"embedding": {"values": [0.1] * 9}}, []),
    ],
)
def test_what_no_model_wrote_counts_nothing(case):
    assert counts(case) == (0, 0)


def test_sound_is_no_text():
    event = data({"type": "response.audio.delta", "delta": "UklGRg=="})

    facts = DIALECTS["openai_responses"].read_event(*read_event(event))

    assert (facts.is_meaningful, facts.output_bytes) == (True, 0)


@pytest.mark.parametrize(
    ("content_type", "body", "size"),
    [("text/plain; charset=utf-8", "né\n".encode(), 4), ("audio/mpeg", b"\xff\xf3", 0)],
)
def test_a_transcript_that_is_no_json_counts_as_it_is(content_type, body, size):
    facts = DIALECTS["openai_transcriptions"].read_answer(body, content_type)

    assert facts.output_bytes == size


def test_nothing_is_counted_where_usage_is_told():
    name, whole, _ = chat(content="x" * 400)
    told = {**whole, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

    assert DIALECTS[name].read_answer(json.dumps(told).encode()).output_bytes == 0


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "text", "input", "args", "name", "type", "x"]), inner
        )
    ),
)


@given(value=values)
def test_counting_never_fails(value):
    assert written_bytes(value) >= 0


# -- recorded traffic ----------------------------------------------------------------------


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("stream", "responses"))
def test_recorded_streams_count_what_their_ends_hold(recording):
    dialect = DIALECTS["openai_responses"]
    counted = ended = 0
    for body, name in recording.events():
        counted += dialect.read_event(body, name).output_bytes
        event = read_object(body or b"") or {}
        if event.get("type") == "response.completed":
            ended += written_bytes(event["response"]["output"])  # some hold several streams

    assert counted == ended or recording.is_cut or not ended
