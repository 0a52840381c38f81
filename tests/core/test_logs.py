"""Log lines: one form for ours and the libraries', nothing secret in them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import structlog
from django.conf import settings

from relayproject import logs

SECRET = "sk-" + "proj4f9A7c2E8b1D6053aBcDeFgH"


@pytest.fixture
def configured() -> Iterator[None]:
    yield logs.configure({"level": "INFO", "format": "json"})
    logs.configure(settings.LOGGING)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_both_kinds_have_one_form(configured: None, capsys: pytest.CaptureFixture[str]) -> None:
    structlog.get_logger("ours").info("attempt_failed", status=503)
    logging.getLogger("theirs").warning("took %s", "long", extra={"status": 503})

    ours, theirs = lines(capsys)
    assert ours["event"] == "attempt_failed"
    assert theirs["event"] == "took long"
    for line in (ours, theirs):
        assert line["status"] == 503
        assert {"level", "timestamp"} <= line.keys()
    assert theirs["logger"] == "theirs"


def test_secrets_are_blacked_out_wherever_they_stand(
    configured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    log = structlog.get_logger("ours")
    try:
        raise ValueError(f"refused Bearer {SECRET}")
    except ValueError as error:
        log.exception("failed", error=error)
        logging.getLogger("theirs").exception("refused %s", SECRET)
    log.error("told", text=f"it was {SECRET}", headers={"authorization": [f"Bearer {SECRET}"]})

    assert SECRET not in capsys.readouterr().err


def test_a_value_that_json_lacks_does_not_raise(
    configured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.get_logger("ours").info("odd", big=2**70, money=Decimal("1.5"), text="\ud800")

    (line,) = lines(capsys)
    assert (line["big"], line["money"]) == (2**70, "1.5")


def test_control_characters_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure({"level": "INFO", "format": "console"})
    try:
        structlog.get_logger("ours").info("ev\0ent", a="x\0y", b="x \x1by", c=["\x7f"], d="a\nb")
        logging.getLogger("theirs").warning("took %s", "\x9b2Jlong\r")
        try:
            raise ValueError("\0")
        except ValueError:
            structlog.get_logger("ours").exception("failed")
    finally:
        logs.configure(settings.LOGGING)

    text = capsys.readouterr().err
    assert not [one for one in text if not one.isprintable() and one != "\n"]
    assert r"ev\x00ent" in text
    assert r"a=x\x00y" in text
    assert r"d='a\nb'" in text
    assert r"took \x9b2Jlong\r" in text


def test_below_the_level_nothing_happens(
    configured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("was rendered")

    structlog.get_logger("ours").debug("detail", value=Costly())
    logging.getLogger("httpx").info("HTTP Request: %s", Costly())

    assert capsys.readouterr().err == ""
