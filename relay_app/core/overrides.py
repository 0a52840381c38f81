"""What a channel changes in the requests that go to it: model, parameters, headers. Pure.

The checks say on save what the functions beside them would stumble over at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from relay_app.core.override_operations import Operation, read_operations
from relay_app.core.override_paths import PathError
from relay_app.core.override_work import OverrideError, Weights

OPERATIONS = "operations"

# The plain keys of a `param_override`, and its operations.
ReadOverride: TypeAlias = tuple[dict[str, Any], tuple[Operation, ...]]

# Headers that the relay or the connection decides about (RFC 9110 section 7.6.1, and ours).
RESERVED_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Headers of clients that hold their own credentials here, which never leave the relay.
CREDENTIAL_HEADERS = frozenset(
    {
        "api-key",
        "authorization",
        "cookie",
        "mj-api-secret",
        "proxy-authorization",
        "sec-websocket-protocol",
        "x-api-key",
        "x-goog-api-key",
    }
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)(?::([^{}]*))?\}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class MappingError(ValueError):
    """A `model_mapping` that leads nowhere."""


def map_model(mapping: Mapping[str, Any] | None, model: str) -> str:
    """Return the name that the upstream has for `model`, following the chain to its end.

    A name that is mapped to itself ends it. Raises MappingError for a cycle, or for a
    target that is no name.
    """
    seen = {model}
    while mapping and model in mapping:
        target = mapping[model]
        if not isinstance(target, str) or not target:
            raise MappingError(f"model_mapping: {model!r} is mapped to what is no name")
        if ".." in target.split("/"):
            raise MappingError(f"model_mapping: {target[:100]!r} leads out of the base URL")
        if target == model:
            break
        if target in seen:
            raise MappingError(f"model_mapping goes in a circle at {target!r}")
        seen.add(target)
        model = target
    return model


def check_model_mapping(value: object) -> str | None:
    """Return why `value` is refused as a channel's `model_mapping`, else None."""
    if not isinstance(value, Mapping) or not all(isinstance(n, str) and n for n in value):
        return 'wanted an object like {"gpt-4o": "gpt-4o-2024-11-20"}'
    try:
        for name in value:
            map_model(value, name)
    except MappingError as error:
        return str(error)
    return None


# -- parameters ----------------------------------------------------------------------


def apply_override(
    document: Mapping[str, Any],
    override: ReadOverride,
    *,
    context: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return `document` as `override` wants it: plain keys are set, then operations done.

    `document` stays as it is, and what was not changed is shared with it. `context` is what
    conditions may look at beside the document. Raises OverrideError, or AskedError for a
    `return_error`.
    """
    plain, operations = override
    changed: Any = {**document, **plain}
    weights, start = Weights(), changed
    for operation in operations:
        try:
            if operation.applies(changed, context or {}):
                changed = operation.done_to(changed)
                weights.check(changed, before=start)
        except (PathError, OverrideError) as error:
            raise OverrideError(f"{operation.mode}: {error}") from None
    return dict(changed)


def read_override(override: Mapping[Any, Any]) -> ReadOverride:
    """Return the plain keys and the operations of a `param_override`; raise OverrideError."""
    plain = {name: value for name, value in override.items() if name != OPERATIONS}
    for name in plain:
        if not isinstance(name, str) or not name:
            raise OverrideError("param_override has a key that is no text")
        if name == "stream":
            raise OverrideError("stream can't be set: clients would get another kind of answer")
    if OPERATIONS not in override:
        return plain, ()
    return plain, read_operations(override[OPERATIONS])


def check_param_override(value: object) -> str | None:
    """Return why `value` is refused as a channel's `param_override`, else None."""
    if not isinstance(value, Mapping):
        return 'wanted an object like {"temperature": 0} or {"operations": [...]}'
    try:
        read_override(value)
    except OverrideError as error:
        return str(error)
    return None


# -- headers -------------------------------------------------------------------------


def override_headers(
    override: Mapping[str, str],
    *,
    api_key: str,
    client_headers: Iterable[tuple[bytes, bytes]],
) -> dict[str, str]:
    """Return the headers that `override` sets, their placeholders filled in.

    A header whose `{client_header:NAME}` the client did not send is left out; the client's
    own credentials, and values other than plain ASCII, count as not sent. Raises OverrideError,
    whose text holds no value.
    """
    if fault := _override_fault(override):
        raise OverrideError(fault)
    sent: dict[str, str] | None = None
    found = {}
    for name, template in override.items():
        if "{" in template and sent is None:
            sent = {n.decode("latin-1").lower(): v.decode("latin-1") for n, v in client_headers}
        value = _filled(template, api_key=api_key, sent=sent or {})
        if value is None:
            continue
        if fault := _value_fault(value):
            raise OverrideError(f"{name}: {fault}")
        found[name] = value
    return found


def check_header_override(value: object) -> str | None:
    """Return why `value` is refused as a channel's `header_override`, else None."""
    if (fault := _override_fault(value)) or not isinstance(value, Mapping):
        return fault
    for name, template in value.items():
        for match in _PLACEHOLDER.finditer(template):
            if match[2] and match[2].lower() in CREDENTIAL_HEADERS:
                return f"{name}: {match[2]} holds the client's own credentials, which stay here"
    return None


def _override_fault(value: object) -> str | None:
    """Return why no header can be made of `value`, else None."""
    if not isinstance(value, Mapping):
        return 'wanted an object like {"X-Api-Key": "{api_key}"}'
    seen = set()
    for name, template in value.items():
        if not isinstance(name, str) or _TOKEN.fullmatch(name) is None:
            return f"{str(name)[:60]!r} is no name of a header"
        lowered = name.lower()
        if lowered in RESERVED_HEADERS:
            return f"{name} is set by the relay or the connection itself"
        if lowered in seen:
            return f"{name} is there twice"
        seen.add(lowered)
        if fault := _template_fault(template):
            return f"{name}: {fault}"
    return None


def _template_fault(template: object) -> str | None:
    if not isinstance(template, str):
        return "the value of a header is a text"
    for match in _PLACEHOLDER.finditer(template):
        kind, argument = match.groups()
        is_known = (kind == "api_key" and argument is None) or (
            kind == "client_header" and argument and _TOKEN.fullmatch(argument)
        )
        if not is_known:
            return f"unknown placeholder {{{kind}}}; known: {{api_key}}, {{client_header:NAME}}"
    return _value_fault(template)


def _value_fault(value: str) -> str | None:
    if _CONTROL.search(value):
        return "the value holds line breaks or other control characters"
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return "the value holds characters outside Latin-1"
    return None


def _is_plain(value: str | None) -> bool:
    return value is not None and value.isascii() and _CONTROL.search(value) is None


def _filled(template: str, *, api_key: str, sent: Mapping[str, str]) -> str | None:
    """Return the value, or None when a header of the client is wanted that it did not send."""
    is_missing = False

    def fill(match: re.Match[str]) -> str:
        nonlocal is_missing
        if match[1] == "api_key":
            return api_key
        name = match[2].lower()
        if name in CREDENTIAL_HEADERS or not _is_plain(sent.get(name)):
            is_missing = True
            return ""
        return sent[name]

    value = _PLACEHOLDER.sub(fill, template)
    return None if is_missing else value.strip()
