"""Words that the operator blocks, found in whatever a client may send."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.core.blocked import blocked_word

JSON = "application/json"
FORM = "multipart/form-data; boundary=xyz"


def found(document, *words):
    return blocked_word(json.dumps(document).encode(), JSON, words or ("forbidden",))


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [{"role": "user", "content": "so Forbidden!"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "forbidden"}]}]},
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": "forbidden"}]},
        {"system": "forbidden", "messages": []},
        {"system": [{"type": "text", "text": "forbidden"}], "messages": []},
        {"messages": [{"content": [{"type": "tool_result", "content": [{"text": "forbidden"}]}]}]},
        {"messages": [{"content": [{"type": "tool_use", "input": {"data": "forbidden"}}]}]},
        {"input": "forbidden"},
        {"input": ["a", "forbidden"]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "forbidden"}]}]},
        {"instructions": "forbidden"},
        {"prompt": ["a", "forbidden"]},
        {"contents": [{"parts": [{"text": "forbidden"}]}]},
        {"systemInstruction": {"parts": [{"text": "forbidden"}]}},
        {"query": "forbidden", "documents": ["a"]},
        {"query": "a", "documents": [{"text": "forbidden"}]},
        {"tools": [{"function": {"description": "forbidden"}}]},
    ],
)
def test_texts_of_all_dialects_are_looked_at(document):
    assert found({"model": "m", **document}) == "forbidden"


@pytest.mark.parametrize(
    "document",
    [
        {"model": "forbidden", "messages": [{"role": "user", "content": "fine"}]},
        {"messages": [{"role": "forbidden", "content": "for bidden"}]},
        {"metadata": {"k": "forbidden"}, "user": "forbidden"},
        {"messages": [{"content": ["for", "bidden"]}]},
    ],
)
def test_names_and_settings_are_no_prompt(document):
    assert found(document) is None


def test_pictures_are_not_searched():
    picture = base64.b64encode(b"\x7e\x8a\xdb\x89\xd7\x9d" * 1000).decode()

    assert found({"url": f"data:image/png;base64,{picture[:80]}"}, picture[:8]) is None


def test_text_that_poses_as_a_picture_is_searched():
    assert found({"url": "data:text/plain;base64,something forbidden"}) == "forbidden"
    assert found({"text": "A" * 3000 + " forbidden"}) == "forbidden"


@pytest.mark.parametrize(
    ("text", "word"), [("STRASSE", "straße"), ("in der Straße", "STRASSE"), ("ÉTÉ", "été")]
)
def test_case_does_not_matter_in_any_script(text, word):
    assert found({"input": text}, "x-y-z", word) == word


def test_escapes_do_not_hide_a_word():
    body = b'{"messages": [{"content": "\\u0066orbidden \\ud800"}]}'

    assert blocked_word(body, JSON, ("forbidden",)) == "forbidden"


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"content": "forbidden", "content": "fine"}]}',
        b'{"messages": [{"content": "forbidden", "cont\\u0065nt": "fine"}]}',
        b'{"input": {"a": [{"text": "forbidden"}], "a": "fine"}}',
        b'{"input": "forbidden \xff"}',
        b'{"n": ' + b"9" * 5000 + b', "input": "forbidden"}',
        b'\xef\xbb\xbf{"input": "forbidden"}',
    ],
)
def test_nothing_hides_a_word_that_some_upstream_may_read(body):
    assert blocked_word(body, JSON, ("forbidden",)) == "forbidden"


def test_a_body_nested_too_deeply_to_be_searched_is_told():
    body = b'{"input":' + b"[" * 5000 + b'"forbidden"' + b"]" * 5000 + b"}"

    with pytest.raises(RecursionError):
        blocked_word(body, JSON, ("forbidden",))


SPACES = st.text(st.sampled_from(" \t\r\n\u00a0\u2009\u3000"), min_size=1, max_size=3)


@given(parts=st.lists(st.text("abc", min_size=1, max_size=3), min_size=1), data=st.data())
def test_any_white_space_matches_any_other(parts, data):
    def joined():
        return "".join(part + data.draw(SPACES) for part in parts).strip()

    word = joined()

    assert found({"input": f"x {joined()}. y"}, word) == word


def test_words_do_not_go_on_from_one_text_to_the_next():
    assert found({"input": ["forbidden", "fruit"]}, "forbidden fruit") is None


def test_text_fields_of_forms_are_looked_at_and_files_are_not():
    def part(head, text):
        disposition = f"Content-Disposition: form-data; {head}"
        return f"--xyz\r\n{disposition}\r\n\r\n{text}\r\n".encode()

    prompt = part('name="prompt"', "a Forbidden thing") + b"--xyz--\r\n"
    file = part('name="image"; filename="a.png"', "forbidden") + b"--xyz--\r\n"

    assert blocked_word(prompt, FORM, ("forbidden",)) == "forbidden"
    assert blocked_word(file, FORM, ("forbidden",)) is None


def test_without_words_or_body_nothing_is_blocked():
    assert blocked_word(b'{"input": "x"}', JSON, ()) is None
    assert blocked_word(b"", JSON, ("x",)) is None


@given(
    st.binary(max_size=60) | st.just(b'{"a":' * 100),
    st.sampled_from([JSON, FORM, "", "multipart/form-data"]),
    st.lists(st.text(min_size=1, max_size=4), max_size=3),
)
def test_no_body_makes_it_fail(body, content_type, words):
    assert blocked_word(body, content_type, words) in {None, *words}
