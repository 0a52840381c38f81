"""One form for every log line, ours and the libraries', with secrets blacked out.

`configure` is what Django calls at set-up (LOGGING_CONFIG). Our code logs through structlog: a
call below the level is a no-op. Lines of the standard library's loggers (Django, uvicorn,
Celery) take the same last steps. All go to stderr; stdout belongs to commands.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from relay_app.core.redact import redact

# Chatty at INFO: a line per request, task or tick that says nothing the request log lacks.
QUIET_LOGGERS = ("celery", "django_celery_beat", "httpx", "httpcore", "kombu", "uvicorn")

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Made by us, never from outside.
_SAFE_KEYS = frozenset({"level", "timestamp", "logger"})


def configure(options: dict[str, str]) -> None:
    """Set up logging for this process; `options` holds `level` and `format`."""
    level = logging.getLevelNamesMapping()[options["level"]]
    last: list[Processor] = [
        structlog.processors.format_exc_info,
        _redacted,
        _renderer(options["format"]),
    ]
    first: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _StderrLogger(),
        cache_logger_on_first_use=True,
    )
    foreign: list[Processor] = [
        *first,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_copies,
    ]
    _configure_standard_library(level, foreign=foreign, last=last)


def _configure_standard_library(
    level: int, *, foreign: list[Processor], last: list[Processor]
) -> None:
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=foreign,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [h for h in root.handlers if not isinstance(h, _StderrHandler)]
    root.addHandler(handler)
    root.setLevel(level)
    # Django gave these handlers of their own, one of them a mail per error.
    for name in ("django", "django.server"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for name in QUIET_LOGGERS:
        quiet = level if level == logging.DEBUG else max(level, logging.WARNING)
        logging.getLogger(name).setLevel(quiet)


class _StderrLogger:
    """Writes finished lines to what `sys.stderr` is at that moment."""

    def msg(self, line: str) -> None:
        _write(line)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _StderrHandler(logging.Handler):
    """The same for the standard library's records."""

    def emit(self, record: logging.LogRecord) -> None:
        _write(self.format(record))


def _write(line: str) -> None:
    # Whoever read stderr may be gone; a request must not fail over its log line.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")


def _renderer(form: str) -> Processor:
    if form == "json":
        return structlog.processors.JSONRenderer(serializer=_to_json)
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        exception_formatter=structlog.dev.plain_traceback,
    )
    return lambda logger, name, event: console(logger, name, _escaped(event))


def _escaped(event: EventDict) -> EventDict:
    """Return `event` with control characters written out in its texts: a terminal would obey them.

    Line ends and tabs stay: tracebacks have them, and the renderer quotes values with them.
    """
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _CONTROL.sub(lambda found: repr(found[0])[1:-1], value)
    return event


def _to_json(event: EventDict, **_: Any) -> str:
    try:
        return orjson.dumps(event, default=str).decode()
    except (TypeError, ValueError):  # whole numbers over 64 bits, lone surrogates
        return json.dumps(event, default=str)


def _redacted(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if key not in _SAFE_KEYS:
            event[key] = _clean(value)
    return event


def _clean(value: Any) -> Any:
    """Return `value` with secrets blacked out in every text that it holds."""
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(inner) for inner in value]
    return redact(str(value))


def _without_copies(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event.pop("color_message", None)  # uvicorn repeats its message with colours
    return event
