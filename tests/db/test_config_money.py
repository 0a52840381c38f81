"""Prices and limits in a configuration file: what is refused, in the words that are true."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from billing_app.models import Price, Token, User
from billing_app.services import token_create
from billing_app.usage_report import token_usage
from relay_app.config_apply import config_apply
from relay_app.config_export import config_export, yaml_text
from relay_app.config_file import load_config

pytestmark = pytest.mark.django_db

NANO = 10**9
GIVE_ONE = "give a limit, or leave it unlimited"
BOTH = "it is unlimited: leave the limit empty, or turn unlimited off"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "relay.yaml"


def apply(file: Path, text: str) -> list[str]:
    """Apply a text; return what was said of it."""
    file.write_text(f"version: 1\n{text}")
    out, err = io.StringIO(), io.StringIO()
    call_command("apply_config", str(file), stdout=out, stderr=err)
    return [*out.getvalue().splitlines(), *err.getvalue().splitlines()]


def refused(file: Path, text: str) -> list[str]:
    """Apply a text that must be refused; return the problems without the file's name."""
    with pytest.raises(CommandError) as caught:
        apply(file, text)
    return [line.partition("relay.yaml: ")[2] for line in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize("typed", ['"1,5"', "-1", "0.0000001", "abc"])
def test_a_bad_price_is_told_in_one_line(file: Path, typed: str) -> None:
    [line] = refused(file, f"prices: [{{model: m, input: {typed}}}]")

    assert line.startswith("prices[0].input: ")


def test_a_price_of_parts_alone_is_refused(file: Path) -> None:
    [line] = refused(file, "prices: [{model: m, cached_input: 1, reasoning_output: 2}]")

    assert line == (
        "prices[0]: give at least one of input, output, per_call, per_image and per_second;"
        " 0 is one"
    )
    assert not Price.objects.exists()
    apply(file, "prices: [{model: embedding, input: 0.02}, {model: free, input: 0}]")
    assert Price.objects.count() == 2


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice", opening_balance_nusd=25 * NANO)


def token_row(text: str) -> str:
    return f"tokens: [{{name: t, user: alice, key: sk-relay-0123456789, {text}}}]"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("unlimited: false", GIVE_ONE),
        ("unlimited: false, limit_usd: null", GIVE_ONE),
        ("unlimited: true, limit_usd: 5", BOTH),
    ],
)
def test_limits_that_contradict_are_refused(file: Path, alice: User, text: str, fault: str) -> None:
    assert refused(file, token_row(text)) == [f"tokens[0].limit_usd: {fault}"]
    token_create(user=alice, name="t", key="sk-relay-0123456789")
    assert refused(file, token_row(text)) == [f"tokens[0].limit_usd: {fault}"]


def test_a_bad_limit_is_told_in_one_line(file: Path, alice: User) -> None:
    [line] = refused(file, token_row('unlimited: false, limit_usd: "1,5"'))

    assert line.startswith("tokens[0].limit_usd: ")
    assert GIVE_ONE not in line


@pytest.mark.parametrize(
    ("text", "limit_nusd"),
    [("limit_usd: 5", 5 * NANO), ("limit_usd: 0", 0), ("unlimited: true", None)],
)
def test_one_of_limit_and_unlimited_says_enough(
    file: Path, alice: User, text: str, limit_nusd: int | None
) -> None:
    token_create(user=alice, name="t", is_unlimited=False, limit_nusd=NANO)

    apply(file, f"tokens: [{{name: t, user: alice, {text}}}]")

    token = Token.objects.get()
    assert (token.is_unlimited, token.limit_nusd) == (limit_nusd is None, limit_nusd)


def test_a_row_that_is_limited_to_nothing_named_may_spend_nothing(alice: User) -> None:
    token, _ = token_create(user=alice, name="t")
    Token.objects.update(is_unlimited=False, limit_nusd=None)

    usage = token_usage(token.pk)

    assert (usage.limit_nusd, usage.available_nusd) == (0, 0)


@pytest.mark.parametrize("row", [(False, None), (True, 5 * NANO)], ids=["no limit", "both"])
def test_old_rows_of_tokens_export_to_what_they_mean(
    alice: User, row: tuple[bool, int | None]
) -> None:
    token_create(user=alice, name="t")
    is_unlimited, limit_nusd = row
    Token.objects.update(is_unlimited=is_unlimited, limit_nusd=limit_nusd)
    text = yaml_text(config_export(with_keys=True).document)

    assert config_apply(load_config(text, environ={})).lines == []
    Token.objects.all().delete()
    config_apply(load_config(text, environ={}))

    token = Token.objects.get()
    assert (token.is_unlimited, token.total_limit_nusd) == (is_unlimited, token.limit_nusd)
