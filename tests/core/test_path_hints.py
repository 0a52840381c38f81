"""What a client with a wrong base URL is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.path_hints import BASES, path_hint
from relay_app.urls import ENDPOINTS, MODEL_LISTS


@pytest.mark.parametrize(
    ("path", "meant", "family"),
    [
        ("/chat/completions", "/v1/chat/completions", "openai"),
        ("/v1/v1/chat/completions", "/v1/chat/completions", "openai"),
        ("/v1/chat/completions/", "/v1/chat/completions", "openai"),
        ("/api/v1/embeddings", "/v1/embeddings", "openai"),
        ("/models", "/v1/models", "openai"),
        ("/responses/resp_1", "/v1/responses/resp_1", "openai"),
        ("/v1/v1/messages", "/v1/messages", "anthropic"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens", "anthropic"),
        ("/messages", "/v1/messages", "anthropic"),
        (
            "/v1/v1beta/models/gemini-pro:generateContent",
            "/v1beta/models/gemini-pro:generateContent",
            "gemini",
        ),
        ("/v1beta/v1beta/models", "/v1beta/models", "gemini"),
    ],
)
def test_the_base_url_that_was_meant_is_named(path: str, meant: str, family: str) -> None:
    assert path_hint(path) == f"; did you mean {meant}? {BASES[family]}"


@pytest.mark.parametrize("path", ["/", "/v1", "/favicon.ico", "/v1/healthz", "/a/b/c/d/v1/models"])
def test_other_paths_have_no_hint(path: str) -> None:
    assert path_hint(path) == ""


@given(path=st.text(max_size=300))
def test_any_path_is_taken(path: str) -> None:
    hint = path_hint(path)

    assert hint == "" or hint.startswith("; did you mean /v1")


def test_every_dialect_has_a_base() -> None:
    assert {e.dialect.partition("_")[0] for e in (*ENDPOINTS, *MODEL_LISTS)} == BASES.keys()
