"""Secrets are taken out of text, and the rest of it is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.core.redact import CUT, MASK, cut, redact

LONG = "AbCdEf0123456789AbCdEf0123456789"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Authorization: Bearer {LONG}", f"Authorization: Bearer {MASK}"),
        (f"BEARER {LONG}", f"BEARER {MASK}"),
        (f"bearer {LONG}.{LONG}=", f"bearer {MASK}"),
        ("https://user:pass@host/x", f"https://{MASK}@host/x"),
        ("https://user:p@ss@host/x", f"https://{MASK}@host/x"),
        ("redis://:pass@host:6379/0", f"redis://{MASK}@host:6379/0"),
        (f"http://{LONG}@host", f"http://{MASK}@host"),
        (f"https://host/v1?key={LONG}&x=1", f"https://host/v1?key={MASK}&x=1"),
        (f"https://host/v1?access_token={LONG}", f"https://host/v1?access_token={MASK}"),
        ("GET /?token=abc%2Fdef%2B012 HTTP", f"GET /?token={MASK} HTTP"),
        (f'{{"api_key": "{LONG}"}}', f'{{"api_key": "{MASK}"}}'),
        (f"api-key: {LONG}", f"api-key: {MASK}"),
        (f"apikey={LONG}", f"apikey={MASK}"),
        (f"X-API-KEY: {LONG}", f"X-API-KEY: {MASK}"),
        (f"x-goog-api-key: {LONG}", f"x-goog-api-key: {MASK}"),
        (f"TOKEN={LONG}", f"TOKEN={MASK}"),
        ("Incorrect API key provided: sk-proj-abcdef12", f"Incorrect API key provided: {MASK}"),
        ("bad sk-ant-api03-abc_DEF-123", f"bad {MASK}"),
        ("bad sk-ab****************wxyz", f"bad {MASK}"),
        ("Authorization: Bearer abc", f"Authorization: Bearer {MASK}"),
        ("bearer or-1", f"bearer {MASK}"),
        ("GET /v1/x?key=abc&a=1 HTTP", f"GET /v1/x?key={MASK}&a=1 HTTP"),
        ("https://host/?a=1&token=zzz", f"https://host/?a=1&token={MASK}"),
        ("https://host/?api_key=z", f"https://host/?api_key={MASK}"),
        ("bad pk-0123456789", f"bad {MASK}"),
        ("bad rk-0123456789", f"bad {MASK}"),
        ("bad xai-0123456789", f"bad {MASK}"),
        ("bad gsk_0123456789", f"bad {MASK}"),
        (f"bad AIza{LONG}", f"bad {MASK}"),
    ],
)
def test_what_looks_like_a_credential_is_masked(text, expected):
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Rate limit reached for gpt-5 in organization org-1 on tokens per min",
        "max_tokens: 200000 is too large",
        "This model's maximum context length is 128000 tokens",
        "see https://platform.openai.com/account/api-keys",
        "https://example.com/a@b",
        "mail to ops@example.com",
        "monkey=business1234",
        "the key is not plain ASCII",
        "Missing bearer or basic authentication in header",
        "token: abc",  # too short to be one
        "task-0123456789 failed",
        "désolé 😀",
    ],
)
def test_ordinary_text_stays(text):
    assert redact(text) == text


def test_known_keys_are_masked_wherever_they_stand():
    text = "refused my-own-key1 (and my-own-key1x), also other-key2"

    assert redact(text, ("my-own-key1", "other-key2")) == "refused *** (and ***x), also ***"


@pytest.mark.parametrize("keys", [("secret", "secret-and-more"), ("secret-and-more", "secret")])
def test_a_key_that_begins_another_one_leaves_nothing_of_it(keys):
    assert redact("refused secret-and-more here", keys) == "refused *** here"


def test_known_keys_are_masked_as_json_writes_them_too():
    assert redact(r'{"sent": "a\"quoted\\key"}', ('a"quoted\\key',)) == '{"sent": "***"}'


def test_known_keys_that_are_too_short_would_mask_everything():
    assert redact("a status of 503", ("50", "")) == "a status of 503"


keys = st.lists(
    st.text("abcABC012-_.", min_size=4, max_size=12).filter(lambda key: MASK not in key),
    max_size=4,
)


@given(parts=st.lists(st.text(max_size=8)), keys=keys)
def test_no_known_key_is_left(parts, keys):
    text = "".join(part + key for part, key in zip(parts, keys * 4, strict=False))

    redacted = redact(text, keys)

    assert not any(key in redacted for key in keys)


@given(text=st.text(st.sampled_from("abk:/@?=sey tokn-_.*'\"BearAIz01"), max_size=60))
def test_masking_twice_is_masking_once(text):
    once = redact(text)

    assert redact(once) == once


@given(text=st.text(), length=st.integers(1, 300))
def test_cut_text_is_short_and_says_so(text, length):
    short = cut(text, length)

    assert len(short) <= length
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))
    assert (short == text) == (len(text) <= length)


def test_the_usual_cut():
    assert cut("x" * CUT) == "x" * CUT
    assert cut("x" * (CUT + 1)) == "x" * (CUT - 1) + "…"
