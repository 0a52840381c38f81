"""Prices: which one counts, and exact amounts, against tables that were worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_app.core.money import (
    nusd_to_usd,
    round_half_away,
    show_usd,
    usd_to_nusd,
)
from billing_app.core.pricing import PriceView, amount_nusd, estimate_nusd, price_table
from billing_app.core.usage import Usage, merged
from relay_app.core.sse import read_event
from relay_app.dialects.anthropic import AnthropicMessages
from relay_app.dialects.gemini import GeminiContent, GeminiDialect
from relay_app.dialects.openai_chat import OpenAIChat
from relay_app.dialects.registry import DIALECTS
from tests.support import anthropic, gemini


def price(**values: object) -> PriceView:
    decimals = {name: Decimal(str(value)) for name, value in values.items()}
    return PriceView(model="m", **decimals)


GPT = price(input="2.5", cached_input="1.25", output=10, audio_input=40, audio_output=80)
CLAUDE = price(input=3, cached_input="0.3", cache_write="3.75", cache_write_1h=6, output=15)
GEMINI = price(
    input="0.3", cached_input="0.03", audio_input=1, output="2.5", reasoning_output="3.5"
)


@pytest.mark.parametrize(
    ("dialect", "rates", "body", "nusd"),
    [
        (
            OpenAIChat(),
            GPT,
            b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":2006,'
            b'"completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":'
            b'{"cached_tokens":1920,"audio_tokens":6},"completion_tokens_details":'
            b'{"reasoning_tokens":0,"audio_tokens":100}}}',
            # 1920 x 1250 + 6 x 40000 + 80 x 2500 + 100 x 80000 + 200 x 10000
            2_400_000 + 240_000 + 200_000 + 8_000_000 + 2_000_000,
        ),
        (
            AnthropicMessages(),
            CLAUDE,
            b'{"content":[{"type":"text","text":"x"}],"stop_reason":"end_turn","usage":'
            b'{"input_tokens":2095,"cache_creation_input_tokens":456,'
            b'"cache_read_input_tokens":10000,"cache_creation":{"ephemeral_5m_input_tokens":56,'
            b'"ephemeral_1h_input_tokens":400},"output_tokens":503}}',
            # 2095 x 3000 + 10000 x 300 + 56 x 3750 + 400 x 6000 + 503 x 15000
            6_285_000 + 3_000_000 + 210_000 + 2_400_000 + 7_545_000,
        ),
        (
            AnthropicMessages(),
            price(input=3, output=15, reasoning_output=20),
            b'{"content":[{"type":"text","text":"x"}],"stop_reason":"end_turn","usage":'
            b'{"input_tokens":10,"output_tokens":92,"output_tokens_details":'
            b'{"thinking_tokens":53}}}',
            10 * 3000 + 53 * 20000 + 39 * 15000,
        ),
        (
            GeminiDialect(),
            GEMINI,
            b'{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}],'
            b'"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":400,'
            b'"candidatesTokenCount":50,"thoughtsTokenCount":30,"toolUsePromptTokenCount":10,'
            b'"totalTokenCount":1090,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":100}'
            b"]}}",
            # 400 x 30 + 100 x 1000 + 510 x 300 + 30 x 3500 + 50 x 2500
            12_000 + 100_000 + 153_000 + 105_000 + 125_000,
        ),
        (
            GeminiDialect(),
            price(input=2, cached_input="0.5", audio_input=40, output=10),
            b'{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}],'
            b'"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":900,'
            b'"candidatesTokenCount":100,"totalTokenCount":1100,"promptTokensDetails":'
            b'[{"modality":"TEXT","tokenCount":100},{"modality":"AUDIO","tokenCount":900}],'
            b'"cacheTokensDetails":[{"modality":"AUDIO","tokenCount":900}]}}',
            100 * 2000 + 900 * 500 + 100 * 10000,
        ),
        (
            GeminiDialect(),
            price(input=2, cached_input="0.5", image_input=7, audio_input=40, output=10),
            b'{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}],'
            b'"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":500,'
            b'"candidatesTokenCount":100,"totalTokenCount":1100,"promptTokensDetails":'
            b'[{"modality":"TEXT","tokenCount":100},{"modality":"IMAGE","tokenCount":300},'
            b'{"modality":"AUDIO","tokenCount":600}],"cacheTokensDetails":'
            b'[{"modality":"TEXT","tokenCount":50},{"modality":"IMAGE","tokenCount":250},'
            b'{"modality":"AUDIO","tokenCount":200}]}}',
            50 * 2000 + 500 * 500 + 50 * 7000 + 400 * 40000 + 100 * 10000,
        ),
        (
            OpenAIChat(),
            price(input=2, cached_input="0.5", audio_input=40, image_input=7, output=10),
            b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":1000,'
            b'"completion_tokens":100,"prompt_tokens_details":{"cached_tokens":700,'
            b'"audio_tokens":600,"image_tokens":200,"cached_tokens_details":'
            b'{"audio_tokens":500,"image_tokens":150,"text_tokens":50}}}}',
            150 * 2000 + 700 * 500 + 100 * 40000 + 50 * 7000 + 100 * 10000,
        ),
        (
            OpenAIChat(),
            price(input=2, cached_input="0.5", output=8),
            # More cached than there was: a server's fault that costs nobody a negative amount.
            b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":10,'
            b'"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":99}}}',
            10 * 500 + 8000,
        ),
        (
            OpenAIChat(),
            price(input=3, output=15),
            # Reasoning told beside the output, as the total shows.
            b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":10,'
            b'"completion_tokens":5,"total_tokens":115,"completion_tokens_details":'
            b'{"reasoning_tokens":100}}}',
            10 * 3000 + 105 * 15000,
        ),
        (
            OpenAIChat(),
            price(input=1, output=2, reasoning_output=5),
            # Thinking that only the total has.
            b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":35,'
            b'"completion_tokens":12,"total_tokens":109}}',
            35 * 1000 + 12 * 2000 + 62 * 5000,
        ),
        (
            OpenAIChat(),
            price(input=1, audio_input=7, output=2),
            # Audio told beside the prompt.
            b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":5,'
            b'"completion_tokens":11,"total_tokens":391,"prompt_tokens_details":'
            b'{"audio_tokens":375}}}',
            5 * 1000 + 375 * 7000 + 11 * 2000,
        ),
        (
            DIALECTS["openai_images"],
            price(input=5, image_input=10, output=40),
            b'{"data":[{"b64_json":"AA=="}],"usage":{"input_tokens":50,"output_tokens":272,'
            b'"total_tokens":322,"input_tokens_details":{"image_tokens":40,"text_tokens":10}}}',
            10 * 5000 + 40 * 10000 + 272 * 40000,
        ),
    ],
    ids=[
        "openai",
        "anthropic",
        "anthropic-thinking",
        "gemini",
        "gemini-cached-audio",
        "gemini-cached-pictures",
        "openai-cached-audio",
        "too-many-cached",
        "reasoning-beside",
        "thinking-unnamed",
        "audio-beside",
        "image",
    ],
)
def test_amounts_of_real_usage(dialect, rates, body, nusd):
    usage = dialect.read_answer(body).usage

    assert amount_nusd(rates, usage) == nusd
    assert amount_nusd(rates, usage, ratio=Decimal("0.5")) == (nusd + 1) // 2


WRITTEN = price(input=2, cached_input="0.2", cache_write=3, cache_write_1h=5, output=10)


def anthropic_stream(start, end):
    """Return the amount of a stream whose first and last events tell this usage."""
    events = [anthropic.start(**start), anthropic.text("x"), anthropic.finish(**end)]
    told = [AnthropicMessages().read_event(*read_event(event)).usage for event in events]
    return amount_nusd(WRITTEN, reduce(merged, told, None))


@pytest.mark.parametrize(
    ("start", "end", "nusd"),
    [
        (
            # All of it for an hour; the end tells the sum alone.
            {
                "input_tokens": 500,
                "cache_creation_input_tokens": 1000,
                "cache_creation": {"ephemeral_1h_input_tokens": 1000},
            },
            {"input_tokens": 500, "cache_creation_input_tokens": 1000, "output_tokens": 100},
            500 * 2000 + 1000 * 5000 + 100 * 10000,
        ),
        (
            {
                "input_tokens": 500,
                "cache_creation_input_tokens": 1400,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": 400,
                    "ephemeral_1h_input_tokens": 1000,
                },
            },
            {"input_tokens": 500, "cache_creation_input_tokens": 1400, "output_tokens": 100},
            500 * 2000 + 400 * 3000 + 1000 * 5000 + 100 * 10000,
        ),
        (
            # More was written on the way, while the upstream used its tools.
            {
                "input_tokens": 2,
                "cache_creation_input_tokens": 3000,
                "cache_creation": {"ephemeral_5m_input_tokens": 3000},
            },
            {
                "input_tokens": 6,
                "cache_creation_input_tokens": 3300,
                "cache_read_input_tokens": 6000,
                "output_tokens": 100,
            },
            6 * 2000 + 3300 * 3000 + 6000 * 200 + 100 * 10000,
        ),
        (
            # The end has no input of its own: that of the beginning stays.
            {"input_tokens": 500, "cache_read_input_tokens": 100},
            {"input_tokens": None, "cache_read_input_tokens": 100, "output_tokens": 100},
            500 * 2000 + 100 * 200 + 100 * 10000,
        ),
        (
            {"input_tokens": 500},
            {"cache_read_input_tokens": 70, "cache_creation_input_tokens": 30},
            500 * 2000 + 70 * 200 + 30 * 3000 + 2 * 10000,
        ),
        (
            {"input_tokens": 500},
            {"input_tokens": 0, "cache_read_input_tokens": 0},
            500 * 2000 + 2 * 10000,
        ),
        (
            # The beginning knows nothing yet.
            {"input_tokens": 0},
            {"input_tokens": 500, "cache_read_input_tokens": 70},
            500 * 2000 + 70 * 200 + 2 * 10000,
        ),
    ],
    ids=[
        "written-for-an-hour",
        "written-for-both",
        "more-written",
        "null-input",
        "no-input",
        "zero-input",
        "all-at-the-end",
    ],
)
def test_amounts_of_anthropic_streams(start, end, nusd):
    assert anthropic_stream(start, end) == nusd


def test_a_stream_that_tells_its_cached_tokens_only_at_its_end_is_charged_for_them():
    end = anthropic.finish(cache_read_input_tokens=70, output_tokens=3)

    usage = merged(None, AnthropicMessages().read_event(*read_event(end)).usage)

    assert amount_nusd(WRITTEN, usage) == 70 * 200 + 3 * 10000


def test_audio_that_only_the_end_of_a_stream_tells_as_cached_is_charged_as_cached():
    audio = {"promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 900}]}
    begun = {"promptTokenCount": 1000, **audio}
    ended = {
        **begun,
        "candidatesTokenCount": 100,
        "cachedContentTokenCount": 900,
        "cacheTokensDetails": audio["promptTokensDetails"],
    }
    events = [gemini.said({"text": "x"}, usageMetadata=usage) for usage in (begun, ended)]
    told = [GeminiContent().read_event(json.dumps(event).encode(), b"").usage for event in events]
    rates = price(input=2, cached_input="0.5", audio_input=40, output=10)

    assert amount_nusd(rates, reduce(merged, told, None)) == 1_650_000


@pytest.mark.parametrize(
    ("rates", "usage", "ratio", "nusd"),
    [
        (price(input="0.0001"), Usage(input_tokens=1), "1", 1),  # never less than 1
        (price(input="0.0005"), Usage(input_tokens=1), "1", 1),
        (price(input="0.0025"), Usage(input_tokens=1), "1", 3),  # 2.5: away from zero
        (price(input="0.0024"), Usage(input_tokens=1), "1", 2),
        (price(input=1), Usage(input_tokens=1), "0.333333", 333),
        (price(input=0, output=0), Usage(input_tokens=9, output_tokens=9), "1", 0),
        (price(input=1), Usage(input_tokens=9), "0", 0),
        (price(input=1), Usage(), "1", 0),
        (price(per_call="0.05"), Usage(input_tokens=10**6), "1", 50_000_000),
        (price(per_image="0.04"), Usage(images=3), "1", 120_000_000),
        (price(per_second="0.0001"), Usage(seconds=37), "1", 3_700_000),
        (price(input=5, per_second="0.0001"), Usage(input_tokens=2, seconds=1), "2", 220_000),
        (price(input=5, per_image="0.04"), Usage(input_tokens=2, images=1), "1", 40_010_000),
        (
            price(input="999999.999999", output="0.000001"),
            Usage(input_tokens=2**31 - 1, output_tokens=3),
            "1000",
            # 999999999.999 nUSD a token, exactly
            int((Fraction(2**31 - 1) * Fraction("999999999.999") + Fraction(3, 1000)) * 1000),
        ),
    ],
)
def test_amounts_to_the_last_digit(rates, usage, ratio, nusd):
    assert amount_nusd(rates, usage, ratio=Decimal(ratio)) == nusd


usages = st.builds(
    Usage,
    **{
        name: st.integers(0, 10**6)
        for name in (
            "input_tokens",
            "output_tokens",
            "cached_input_tokens",
            "cache_write_tokens",
            "cache_write_1h_tokens",
            "image_input_tokens",
            "audio_input_tokens",
            "cached_image_input_tokens",
            "cached_audio_input_tokens",
            "reasoning_tokens",
            "audio_output_tokens",
        )
    },
)
rates = st.one_of(st.none(), st.decimals(0, 1000, places=3))
prices = st.builds(
    PriceView,
    model=st.just("m"),
    **dict.fromkeys(
        (
            "input",
            "cached_input",
            "cache_write",
            "cache_write_1h",
            "output",
            "reasoning_output",
            "image_input",
            "audio_input",
            "audio_output",
        ),
        rates,
    ),
)


@given(rates=prices, usage=usages, ratio=st.decimals(0, 10, places=6))
def test_an_amount_lies_between_the_cheapest_and_the_dearest_of_its_rates(rates, usage, ratio):
    amount = amount_nusd(rates, usage, ratio=ratio)

    filled = rates.rates
    highest = max(
        getattr(filled, name)
        for name in filled.__slots__
        if name not in ("per_call", "per_image", "per_second")
    )
    most = Fraction(usage.input_tokens + usage.output_tokens) * highest * Fraction(ratio)
    assert isinstance(amount, int)
    assert 0 <= amount <= most + 1
    if not most:
        assert amount == 0


@given(rates=prices, usage=usages)
def test_the_ratio_one_changes_nothing_and_two_doubles(rates, usage):
    amount = amount_nusd(rates, usage)

    assert amount_nusd(rates, usage, ratio=Decimal("1.000000")) == amount
    assert amount_nusd(rates, usage, ratio=Decimal(2)) == 2 * amount  # whole at 3 decimals


@given(rates=prices, prompt=st.integers(0, 10**6), output=st.integers(0, 10**6))
def test_an_estimate_covers_what_it_estimates(rates, prompt, output):
    estimate = estimate_nusd(rates, prompt_tokens=prompt, output_tokens=output)

    usage = Usage(input_tokens=prompt, output_tokens=output)
    assert estimate == amount_nusd(rates, usage)


def test_a_name_counts_before_patterns_and_long_patterns_before_short_ones():
    rows = [PriceView(model=name, input=Decimal(1)) for name in ("gpt-4o*", "gpt-*", "*", "gpt-4o")]
    table = price_table(rows)

    found = {name: table.find(name).model for name in ("gpt-4o", "gpt-4o-mini", "gpt-5", "other")}

    assert found == {"gpt-4o": "gpt-4o", "gpt-4o-mini": "gpt-4o*", "gpt-5": "gpt-*", "other": "*"}
    assert price_table(rows[:2]).find("other") is None
    assert price_table(rows[:2]).find("other") is None  # as remembered


@given(names=st.lists(st.text("ab", max_size=4), unique=True), asked=st.text("ab", max_size=5))
def test_the_longest_pattern_counts(names, asked):
    table = price_table(PriceView(model=f"{name}*") for name in names)

    found = table.find(asked)

    fitting = [name for name in names if asked.startswith(name)]
    assert (found.model[:-1] if found else None) == (max(fitting, key=len) if fitting else None)


@given(amount=st.integers(-(10**18), 10**18))
def test_amounts_are_shown_and_read_without_loss(amount):
    assert usd_to_nusd(show_usd(amount, sign="")) == amount
    assert usd_to_nusd(nusd_to_usd(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (1, "$0.000000001"), (-1_500_000_000, "-$1.50"), (12 * 10**9, "$12.00")],
)
def test_amounts_as_people_read_them(amount, text):
    assert show_usd(amount) == text


@pytest.mark.parametrize("text", ["", "x", "NaN", "Infinity", "1e30", "-1e999999"])
def test_what_is_no_amount(text):
    with pytest.raises(ValueError, match="USD"):
        usd_to_nusd(text)


@given(value=st.fractions())
def test_halves_are_rounded_away_from_zero(value):
    rounded = round_half_away(value)

    assert abs(rounded - value) <= Fraction(1, 2)
    if abs(rounded - value) == Fraction(1, 2):
        assert abs(rounded) > abs(value)


@given(early=usages, late=usages)
def test_a_later_report_counts_where_it_says_something(early, late):
    both = early.updated(late)

    assert both.output_tokens == (late.output_tokens or early.output_tokens)
    assert both.cache_write_1h_tokens == (late.cache_write_1h_tokens or early.cache_write_1h_tokens)
    if late.input_tokens:
        assert both.input_tokens == late.input_tokens
    assert both.updated(Usage()) == both


@given(early=usages, late=usages)
def test_a_later_report_of_cached_tokens_alone_leaves_the_rest_of_the_prompt(early, late):
    both = early.updated(replace(late, input_tokens=0))

    def rest(usage):
        return usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens

    assert rest(both) == rest(early) or both.input_tokens == 0
