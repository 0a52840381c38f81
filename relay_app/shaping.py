"""What a channel makes of a request before it goes there: model, parameters, headers.

In the order of spec 07 section 4. Whatever is wrong with the channel's own settings is a
channel error, so that the next channel is tried.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from channels_app.core.types import ChannelView, Failure, FailureClass, KeyView
from relay_app.core import json_edit, multipart
from relay_app.core.foreign import drop_foreign
from relay_app.core.override_operations import AskedError
from relay_app.core.override_work import OverrideError
from relay_app.core.overrides import (
    CREDENTIAL_HEADERS,
    OPERATIONS,
    MappingError,
    ReadOverride,
    apply_override,
    map_model,
    override_headers,
    read_override,
)
from relay_app.core.types import Call
from relay_app.dialects.base import Dialect

MODEL_MAPPED_ERROR = "channel:model_mapped_error"
PARAM_OVERRIDE_INVALID = "channel:param_override_invalid"
HEADER_OVERRIDE_INVALID = "channel:header_override_invalid"

# An argument in the path of an endpoint, as Django writes it: `<path:model>`.
_ARGUMENT = re.compile(r"<(?:\w+:)?(\w+)>")


def shape(
    call: Call,
    *,
    channel: ChannelView,
    key: KeyView | None,
    dialect: Dialect,
    model: str,
    retry_index: int = 0,
    last_failure: Failure | None = None,
) -> Call | Failure:
    """Return `call` as it goes to `channel`, asking for `model` or what the channel calls it.

    The same object comes back when nothing is to be changed. A Failure is a channel error, or
    what a `return_error` of the channel asks for.
    """
    overrides = channel.param_override, channel.header_override
    if model == call.model and channel.model_mapping is None and overrides == (None, None):
        return call
    try:
        target = map_model(channel.model_mapping, model)
        shaped = _with_model(call, target, dialect)
    except MappingError as error:
        return channel_error(MODEL_MAPPED_ERROR, str(error))
    except ValueError as error:
        return channel_error(MODEL_MAPPED_ERROR, f"the model can't be set: {error}")
    if channel.param_override and call.body:
        has_conditions = OPERATIONS in channel.param_override
        context = _context(call, target, retry_index, last_failure) if has_conditions else {}
        try:
            override = read_override(channel.param_override)
            shaped = _with_override(shaped, override, context)
        except AskedError as asked:
            return _asked_failure(asked)
        except (OverrideError, ValueError) as error:
            return channel_error(PARAM_OVERRIDE_INVALID, str(error))
    if channel.header_override:
        try:
            headers = override_headers(
                channel.header_override,
                api_key=key.value if key else "",
                client_headers=call.client_headers,
            )
        except OverrideError as error:
            return channel_error(HEADER_OVERRIDE_INVALID, str(error))
        shaped = replace(shaped, header_override=headers)
    return shaped


def upstream_model(channel: ChannelView, model: str) -> str:
    """Return what `channel` calls `model`; the name itself where its mapping leads nowhere."""
    try:
        return map_model(channel.model_mapping, model)
    except MappingError:
        return model


def channel_error(code: str, message: str) -> Failure:
    """Return the failure of a channel whose own settings are at fault."""
    return Failure(failure_class=FailureClass.CHANNEL_CONFIG, code=code, message=message)


def _with_model(call: Call, target: str, dialect: Dialect) -> Call:
    """Return `call` asking for `target`, without parameters that belong to the other model."""
    if target == call.model:
        return call
    if not call.body:
        return replace(call, model=target)
    asked, call = call.model, dialect.with_model(call, target)
    if multipart.is_form(call.content_type):
        return call  # its endpoints (images, audio) have no such parameters
    fields = json_edit.split_fields(call.body)
    kept = drop_foreign(fields, asked=asked, target=target)
    return call if kept is fields else replace(call, body=json_edit.join_fields(kept))


def _with_override(call: Call, override: ReadOverride, context: Mapping[str, Any]) -> Call:
    """Return `call` with its body changed; what is not touched keeps its bytes."""
    if multipart.is_form(call.content_type):
        return _with_form_override(call, override, context)
    fields = json_edit.split_fields(call.body)
    _, operations = override
    names: set[str] | None = set()
    for operation in operations:
        names = None if names is None or operation.heads is None else names | operation.heads
    before = json_edit.opened(fields, names)
    after = apply_override(before, override, context=context)
    unchanged = {
        name: fields[name] for name, value in after.items() if before.get(name, fields) is value
    }
    return replace(call, body=json_edit.join_fields({**after, **unchanged}))


def _with_form_override(call: Call, override: ReadOverride, context: Mapping[str, Any]) -> Call:
    """Return `call` with text fields of its form changed; files can't be, nor anything removed."""
    fields = multipart.read_fields(call.body, call.content_type)
    before = {name: values[0] for name, values in fields.items() if len(values) == 1}
    after = apply_override(before, override, context=context)
    if gone := before.keys() - after.keys():
        raise OverrideError(f"{min(gone)} can't be taken out of a form")
    values = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in after.items()
        if before.get(name) is not value
    }
    if not values:
        return call
    return replace(call, body=multipart.set_fields(call.body, call.content_type, values))


def _context(
    call: Call, target: str, retry_index: int, last_failure: Failure | None
) -> dict[str, Any]:
    """Return what conditions may look at beside the body."""
    is_retry = retry_index > 0
    context: dict[str, Any] = {
        "model": target,
        "upstream_model": target,
        "original_model": call.model,
        "request_path": "/" + _ARGUMENT.sub(lambda m: call.path.get(m[1], ""), call.endpoint.path),
        "request_headers": _headers(call),
        "retry_index": retry_index,
        "is_retry": is_retry,
        "retry": {"index": retry_index, "is_retry": is_retry},
    }
    if last_failure is not None:
        context["last_error"] = {
            "status_code": last_failure.seen_status or last_failure.status or 0,
            "message": last_failure.message,
            "code": last_failure.code or "",
            "type": last_failure.type or "",
        }
    return context


def _headers(call: Call) -> dict[str, str]:
    """Return the client's headers by lower-case name, without its credentials."""
    headers = {n.decode("latin-1").lower(): v.decode("latin-1") for n, v in call.client_headers}
    return {name: value for name, value in headers.items() if name not in CREDENTIAL_HEADERS}


def _asked_failure(asked: AskedError) -> Failure:
    return Failure(
        failure_class=FailureClass.INVALID_REQUEST,
        message=asked.message,
        status=asked.status,
        seen_status=asked.status,
        code=asked.code,
        type=asked.type,
        skip_retry=asked.skip_retry,
    )
