"""The bundled list: what well-known models cost by it, and that no pattern prices a stranger."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from io import StringIO

import pytest
from django.core.management import call_command

from billing_app.core.pricing import PriceTable, PriceView, price_table
from billing_app.models import Price
from billing_app.price_list import bundled_prices, prices_load


def table_of(prices: Mapping[str, Mapping[str, str]]) -> PriceTable:
    return price_table(
        PriceView(model=model, **{name: Decimal(value) for name, value in listed.items()})
        for model, listed in prices.items()
    )


@pytest.fixture(scope="module")
def table() -> PriceTable:
    return table_of(bundled_prices())


@pytest.mark.parametrize(
    ("model", "rates"),
    [
        # input, cached input, output, in USD per million tokens
        ("claude-fable-5", "10 1 50"),
        ("claude-fable-5-1", "10 0.25 50"),
        ("claude-fable-5-2", "8 0.2 40"),
        ("claude-opus-5", "5 0.5 25"),
        ("claude-opus-5-5", "4 0.2 20"),
        ("claude-opus-4-8", "5 0.5 25"),
        ("claude-opus-4-7", "5 0.5 25"),
        ("claude-opus-4-5-20251101", "5 0.5 25"),
        ("claude-opus-4-1-20250805", "15 1.5 75"),
        ("claude-opus-4-20250514", "15 1.5 75"),
        ("claude-sonnet-5", "2 0.2 10"),
        ("claude-sonnet-5-5", "2 0.1 10"),
        ("claude-sonnet-4-6", "3 0.3 15"),
        ("claude-sonnet-4-5-20250929", "3 0.3 15"),
        ("claude-sonnet-4-20250514", "3 0.3 15"),
        ("claude-3-7-sonnet-latest", "3 0.3 15"),
        ("claude-haiku-5-5", "0.1 0.01 0.5"),
        ("claude-haiku-4-5-20251001", "1 0.1 5"),
        ("claude-3-haiku-20240307", "0.25 0.03 1.25"),
        ("gpt-6.2-astra", "8 0.4 40"),
        ("gpt-6.1-terra", "1 0.05 5"),
        ("gpt-6-luna", "0.1 0.01 0.5"),
        ("gpt-5.6-terra", "2 0.2 12"),
        ("gpt-5.5", "5 0.5 30"),
        ("gpt-5.5-2026-04-23", "5 0.5 30"),
        ("gpt-5.5-pro", "30 30 180"),
        ("gpt-5.5-pro-2026-04-23", "30 30 180"),
        ("gpt-5.4-2026-03-05", "2.5 0.25 15"),
        ("gpt-5.4-pro", "30 30 180"),
        ("gpt-5.4-mini-2026-03-17", "0.75 0.075 4.5"),
        ("gpt-5.4-nano", "0.2 0.02 1.25"),
        ("gpt-5.2-codex", "1.75 0.175 14"),
        ("gpt-5-2025-08-07", "1.25 0.125 10"),
        ("gpt-5-mini-2025-08-07", "0.25 0.025 2"),
        ("gpt-5-nano", "0.05 0.005 0.4"),
        ("gpt-5-pro-2025-10-06", "15 15 120"),
        ("gpt-4.1-mini-2025-04-14", "0.4 0.1 1.6"),
        ("gpt-4o-2024-11-20", "2.5 1.25 10"),
        ("gpt-4o-2024-05-13", "5 5 15"),
        ("gpt-4o-mini-2024-07-18", "0.15 0.075 0.6"),
        ("gpt-4-0613", "30 30 60"),
        ("gpt-4-0125-preview", "10 10 30"),
        ("gpt-3.5-turbo-16k", "3 3 4"),
        ("o4-mini-2025-04-16", "1.1 0.275 4.4"),
        ("o3-deep-research-2025-06-26", "10 2.5 40"),
        ("gemini-4-argon", "4 0.2 20"),
        ("gemini-3.8-flash", "1.5 0.15 7.5"),
        ("gemini-3.5-flash", "1.5 0.15 9"),
        ("gemini-3.1-pro-preview", "2 0.2 12"),
        ("gemini-3.1-flash-lite", "0.25 0.025 1.5"),
        ("gemini-3-flash-preview", "0.5 0.05 3"),
        ("gemini-2.5-pro-preview-05-06", "1.25 0.125 10"),
        ("gemini-2.5-flash-lite", "0.1 0.01 0.4"),
        ("gemini-1.5-flash-8b-001", "0.0375 0.01 0.15"),
        ("grok-4.7", "2 0.5 6"),
        ("grok-4.3", "1.25 0.2 2.5"),
        ("grok-3-mini-fast", "0.6 0.15 4"),
        ("deepseek-v4-pro", "1.32 0.044 3.96"),
        ("deepseek-v4-flash", "0.3 0.006 1.2"),
        ("kimi-k3", "3 0.3 15"),
        ("kimi-k2.6", "0.95 0.16 4"),
        ("glm-4.7", "0.6 0.11 2.2"),
        ("glm-4.6v", "0.3 0.05 0.9"),
        ("mistral-small-latest", "0.15 0.015 0.6"),
        ("muse-spark-1.1", "1.25 0.15 4.25"),
        ("qwen3-max", "1.2 1.2 6"),
        ("text-embedding-3-small", "0.02 0.02 0"),
        ("tts-1", "60 60 0"),
        ("tts-1-hd", "120 120 0"),
    ],
)
def test_well_known_models_have_their_list_price(table: PriceTable, model: str, rates: str) -> None:
    found = table.find(model)

    assert found is not None
    usd = [
        Decimal(rate.numerator) / rate.denominator / 1000
        for rate in (found.rates.input, found.rates.cached_input, found.rates.output)
    ]
    assert usd == [Decimal(rate) for rate in rates.split()]


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("whisper-1", {"per_second": "0.0001"}),
        ("gpt-image-2", {"input": "5", "image_input": "8", "output": "30"}),
        ("gpt-4o-audio-preview", {"audio_input": "40", "audio_output": "80"}),
        ("gpt-audio-mini", {"input": "0.6", "audio_input": "10", "audio_output": "20"}),
        ("gemini-2.5-flash", {"audio_input": "1"}),
        ("gemini-3-pro-image", {"output": "120", "reasoning_output": "12"}),
        ("gpt-5.6-terra", {"cache_write": "2.5"}),
        ("dall-e-3", {"per_image": "0.04"}),
        ("rerank-v4.0-pro", {"per_call": "0.0025"}),
        ("veo-3.1-lite-generate-preview", {"per_second": "0.05"}),
    ],
)
def test_parts_that_cost_something_else(
    table: PriceTable, model: str, parts: dict[str, str]
) -> None:
    found = table.find(model)

    for name, value in parts.items():
        assert getattr(found, name) == Decimal(value)


def test_caches_of_claude_cost_what_the_vendor_says() -> None:
    """Writes cost 1.25 and 2 times the input, reads a tenth of it or less."""
    for model, listed in bundled_prices().items():
        if not model.startswith("claude-") or model.startswith(("claude-2", "claude-3-haiku")):
            continue
        plain = Decimal(listed["input"])
        assert Decimal(listed["cache_write"]) == plain * Decimal("1.25"), model
        assert Decimal(listed["cache_write_1h"]) == plain * 2, model
        assert Decimal(listed["cached_input"]) <= plain / 10, model


@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-4",
        "claude-opus-4-9",
        "claude-opus-5-6",
        "claude-opus-6",
        "claude-sonnet-5-6",
        "claude-sonnet-6",
        "claude-fable-6",
        "claude-haiku-4-6",
        "gpt-7",
        "gpt-6.3-sol",
        "gpt-6.2-sol-pro",
        "gpt-6",
        "gpt-5.7",
        "gpt-5.6-pro",
        "gpt-5.5-mini",
        "gpt-5.5-ultra",
        "gpt-5.4-codex",
        "gpt-5-turbo",
        "gpt-4o-new-preview",
        "gpt-4.1-pro",
        "gpt-image-3",
        "o3-max",
        "o5-mini",
        "gemini-2.5-ultra",
        "gemini-2.5-flash-pro",
        "gemini-3-ultra",
        "gemini-3.8-pro",
        "gemini-4-xenon",
        "grok-4-heavy",
        "grok-4.8",
        "grok-5",
        "kimi-k2.8",
        "kimi-k4",
        "deepseek-v4-max",
        "deepseek-v5",
        "glm-4.8",
        "glm-6",
        "mistral-large-latest",
        "mistral-medium-4",
        "codestral-2701",
        "MiniMax-M4",
        "qwen3-max-thinking",
        "qwen4-max",
        "command-a-plus-05-2026",
        "voyage-3.5-max",
        "tts-2",
        "whisper-2",
    ],
)
def test_a_model_that_is_not_listed_has_no_price_of_a_sibling(
    table: PriceTable, model: str
) -> None:
    assert table.find(model) is None


def test_patterns_cover_dates_and_closed_families_only() -> None:
    closed = ("claude-3-", "gemini-1.5-")
    patterns = [model for model in bundled_prices() if model.endswith("*")]

    open_ones = [p for p in patterns if not p.endswith("-20*") and not p.startswith(closed)]

    assert open_ones == ["gemini-2.5-pro-preview-0*"]  # by month and day


@pytest.mark.django_db
def test_what_the_list_no_longer_has_is_removed_unless_it_was_made_or_edited_here() -> None:
    prices_load()
    old = {"input": "1.25", "output": "10"}
    for model, values in {
        "gpt-5*": {"bundled": old, "input": Decimal("1.25")},
        "grok-4*": {"bundled": old, "input": Decimal(2)},
        "own*": {"bundled": None, "input": Decimal("1.25")},
    }.items():
        Price.objects.create(model=model, output=10, **values)

    def present() -> set[str]:
        return {"gpt-5*", "grok-4*", "own*"} & set(Price.objects.values_list("model", flat=True))

    assert prices_load(is_dry=True).removed == ["gpt-5*"]
    assert prices_load(only={"gpt-5*"}, overwrites=True).removed == []
    assert present() == {"gpt-5*", "grok-4*", "own*"}

    out = StringIO()
    call_command("load_prices", stdout=out)

    assert out.getvalue().splitlines() == [
        "- gpt-5*: no longer listed",
        "= grok-4*: edited here, kept",
        f"0 added, 0 changed, 1 removed, 1 kept as edited, of {len(bundled_prices())} listed",
    ]
    assert present() == {"grok-4*", "own*"}
    assert prices_load(overwrites=True).removed == ["grok-4*"]
    assert present() == {"own*"}
