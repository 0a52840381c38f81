"""Name what went wrong with an attempt: structure first, then wording, then status.

Three tables, each read from the top; the first row that fits decides. To teach the
relay a new provider, add a row. Classes are those of spec 02 section 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from channels_app.core.types import Failure, FailureClass
from relay_app.core.error_body import ErrorInfo, read_error
from relay_app.core.redact import redact

C = FailureClass

# Error codes and types, lower-case, without `_`, `-`, `.` and spaces.
WORDS: Mapping[str, FailureClass] = {
    "insufficientquota": C.QUOTA,
    "billingnotactive": C.QUOTA,
    "billingerror": C.QUOTA,
    "usagelimitreached": C.QUOTA,
    "insufficientbalanceerror": C.QUOTA,
    "exceededcurrentquotaerror": C.QUOTA,
    "accountoverdueerror": C.QUOTA,
    "arrearage": C.QUOTA,
    "userweeklyratelimited": C.QUOTA,
    "monthlyrequestcount": C.QUOTA,
    "contextlengthexceeded": C.CONTEXT_WINDOW,
    "toomanyprompttokens": C.CONTEXT_WINDOW,
    "toomanytokens": C.CONTEXT_WINDOW,
    "contentfilter": C.CONTENT_FILTER,
    "contentpolicyviolation": C.CONTENT_FILTER,
    "datainspectionfailed": C.CONTENT_FILTER,
    "inputtextriskdetection": C.CONTENT_FILTER,
    "outputtextriskdetection": C.CONTENT_FILTER,
    "modelnotfound": C.UNKNOWN_MODEL,
    "deploymentnotfound": C.UNKNOWN_MODEL,
    "modelnotopen": C.UNKNOWN_MODEL,
    "accessdeniedunpurchased": C.UNKNOWN_MODEL,
    "invalidendpointormodelnotfound": C.UNKNOWN_MODEL,
    "serverisoverloaded": C.SERVER,
    "overloadederror": C.SERVER,
    "engineoverloadederror": C.SERVER,
    "invalidapikey": C.AUTH,
    "authenticationerror": C.AUTH,
    "accountdeactivated": C.AUTH,
    "apikeyinvalid": C.AUTH,
    "ratelimiterror": C.RATE_LIMIT,
    "ratelimitexceeded": C.RATE_LIMIT,
    "ratelimitreached": C.RATE_LIMIT,
    "timeouterror": C.TIMEOUT,
    "requesttimeout": C.TIMEOUT,
}

# What these say about errors that come under a status of their own, the status says
# better; inside a 200 they are all there is (Anthropic's types, gRPC's statuses).
WORDS_WITHOUT_STATUS: Mapping[str, FailureClass] = {
    "invalidrequesterror": C.INVALID_REQUEST,
    "notfounderror": C.INVALID_REQUEST,
    "requesttoolarge": C.INVALID_REQUEST,
    "conflicterror": C.INVALID_REQUEST,
    "permissionerror": C.AUTH,
    "invalidargument": C.INVALID_REQUEST,
    "failedprecondition": C.INVALID_REQUEST,
    "notfound": C.INVALID_REQUEST,
    "permissiondenied": C.AUTH,
    "unauthenticated": C.AUTH,
    "resourceexhausted": C.RATE_LIMIT,
}

# Words that a provider uses for something else than the rest of the world.
WORDS_BY_PROVIDER: Mapping[str, Mapping[str, FailureClass]] = {
    "dashscope": {"insufficientquota": C.RATE_LIMIT},
}

# Wording of a provider about the account, model or request, by the statuses under
# which it is believed. 5xx only for the account: their texts are often the caller's.
_ANY = range(100, 600)
_CLIENT = range(400, 500)
WORDING: tuple[tuple[range, re.Pattern[str], FailureClass], ...] = tuple(
    (statuses, re.compile(pattern, re.IGNORECASE), failure_class)
    for statuses, pattern, failure_class in (
        (
            _ANY,
            r"credit balance is too low|insufficient[ _](?:account )?(?:balance|credits)"
            r"|balance is insufficient|out of credits|used all available credits"
            r"|requires more credits|purchase more credits|overdue balance"
            r"|billing hard limit",
            C.QUOTA,
        ),
        (
            _CLIENT,
            r"(?:usage|session|hour|spend|weekly|monthly) limit(?: has been)? reached"
            r"|(?:hit|reached) your (?:[\w()-]+ ){0,3}(?:usage |spend |session |rate )?limit"
            r"|exceeded your (?:weekly|monthly|daily) (?:rate|usage) limit"
            r"|limit reached for \d+ hour|使用上限|free-models-per-day"
            r"|extra usage is required|individual quota reached|per day"
            r"|daily request limit|try again in \d+ (?:hours|days)"
            r"|retry after \d{5,} seconds|exceeded current quota",
            C.QUOTA,
        ),
        (
            _CLIENT,
            r"(?:incorrect|invalid|missing) (?:x-)?api[ -]?key|api[ -]?key not valid"
            r"|invalid x-api-key|security token included|unauthorized"
            r"|api key: .{0,40} is invalid|invalid subscription key",
            C.AUTH,
        ),
        (
            range(400, 423),
            r"prompt is too long|prompt too long|context (?:length|window)"
            r"|too many tokens:|input tokens exceeded|input token count"
            r"|length of prompt_tokens|total length of all messages",
            C.CONTEXT_WINDOW,
        ),
        (
            range(400, 423),
            r"\bmodel:? [`'\"]?[^\s`'\"]+[`'\"]?,? (?:does not exist|not found|is not found"
            r"|was removed|is not supported\. supported models)"
            r"|models?/\S+ is not found|publisher model .{1,300} not found"
            r"|model identifier is invalid|access to model denied|^model: \S+$",
            C.UNKNOWN_MODEL,
        ),
        (
            _CLIENT,
            r"currently overloaded|tier capacity exceeded|receiving too many requests"
            r"|is overloaded",
            C.SERVER,
        ),
    )
)

BY_STATUS: Mapping[int, FailureClass] = {
    401: C.AUTH,
    402: C.QUOTA,
    408: C.TIMEOUT,
    429: C.RATE_LIMIT,
    504: C.TIMEOUT,
    524: C.TIMEOUT,
}

# A 403 is a fault of the credential only if it says so (spec 02 section 1).
_FORBIDDEN = re.compile(
    r"permission|forbidden|unauthor|authenticat|access ?denied|api ?key|credential", re.IGNORECASE
)

# The status of an error that came inside a 200 and names none (spec 01 section 5).
STATUS_OF_CLASS: Mapping[FailureClass, int] = {
    C.RATE_LIMIT: 429,
    C.QUOTA: 429,
    C.AUTH: 401,
    C.INVALID_REQUEST: 400,
    C.UNKNOWN_MODEL: 400,
    C.CONTEXT_WINDOW: 400,
    C.CONTENT_FILTER: 400,
}

# What a wait in seconds is written as (RFC 9110 section 10.2.3), with the fractions in use.
_NUMBER = re.compile(r"\s*[0-9]+(?:\.[0-9]+)?\s*")
# Longer codes, types and parameters are no names.
NAME_CHARS = 200
REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid")


def classify_response(
    *,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    provider: str,
    secrets: tuple[str, ...] = (),
) -> Failure:
    """Return the failure that an upstream's error answer stands for.

    Also for an error object inside a 2xx: its status is then the one it names, else
    that of its class, else 502.
    """
    info = read_error(body)
    if 200 <= status <= 299:
        status = info.status or _status_inside_success(info, provider)
    failure_class = _class_of(info, status=status, provider=provider)
    message = info.message or f"the upstream answered {status} without saying why"
    return Failure(
        failure_class=failure_class,
        message=redact(message, secrets)[: info.message_chars],
        status=status,
        seen_status=status,
        code=_name(info.code, secrets),
        type=_name(info.type, secrets),
        param=_name(info.param or "", secrets),
        retry_after_s=retry_after_s(headers) or info.retry_after_s,
        upstream_request_id=request_id_of(headers, secrets),
    )


def request_id_of(headers: Mapping[str, str], secrets: tuple[str, ...]) -> str:
    """Return what the upstream calls the request; empty if it does not say."""
    request_id = next((headers[h] for h in REQUEST_ID_HEADERS if headers.get(h)), "")
    return redact(request_id, secrets)[:100] if request_id else ""


def _name(text: str, secrets: tuple[str, ...]) -> str | None:
    """Return a code, a type or a parameter as it may be shown; None if there is none."""
    return redact(text, secrets)[:NAME_CHARS] or None


def map_status(failure: Failure, status_map: Mapping[int, int]) -> Failure:
    """Return `failure` as the channel's `status_code_mapping` lets it be seen."""
    if failure.status is None or failure.status not in status_map:
        return failure
    return replace(failure, seen_status=status_map[failure.status])


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the published wait in seconds, from `retry-after-ms` or `retry-after`.

    None when there is none or it is no positive number of seconds.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if _NUMBER.fullmatch(text := headers.get(name, "")) is None:
            continue
        wait = float(text) * unit
        if math.isfinite(wait) and wait > 0:
            return wait
    return None


def _status_inside_success(info: ErrorInfo, provider: str) -> int:
    failure_class = (
        _by_wording_of_account(info.message, 400)
        or _by_structure(info, provider)
        or _by_wording(info.message, 400)
        or next((found for word in _words(info) if (found := WORDS_WITHOUT_STATUS.get(word))), None)
    )
    return STATUS_OF_CLASS.get(failure_class, 502) if failure_class else 502


def _class_of(info: ErrorInfo, *, status: int, provider: str) -> FailureClass:
    return (
        _by_wording_of_account(info.message, status)
        or _by_structure(info, provider)
        or _by_wording(info.message, status)
        or _by_status(info, status=status, provider=provider)
    )


def _by_structure(info: ErrorInfo, provider: str) -> FailureClass | None:
    own = WORDS_BY_PROVIDER.get(provider, {})
    for word in _words(info):
        found = own.get(word) or WORDS.get(word)
        if found is not None:
            return found
    return None


def _words(info: ErrorInfo) -> Iterator[str]:
    """Yield code and type as the tables write them."""
    for raw in (info.code, info.type):
        yield re.sub(r"[\W_]", "", raw).lower()


def _by_wording_of_account(message: str, status: int) -> FailureClass | None:
    """A spent account outranks the code it comes under (a 403 `permission_error`)."""
    found = _by_wording(message, status)
    return found if found in (C.QUOTA, C.SERVER) else None


def _by_wording(message: str, status: int) -> FailureClass | None:
    text = message[:2000]
    for statuses, pattern, failure_class in WORDING:
        if status in statuses and pattern.search(text):
            return failure_class
    return None


def _by_status(info: ErrorInfo, *, status: int, provider: str) -> FailureClass:
    if status in BY_STATUS:
        return BY_STATUS[status]
    if status == 403:
        words = f"{info.type} {info.code} {info.message}"
        is_ours = provider == "gemini" or _FORBIDDEN.search(words)
        return C.AUTH if is_ours else C.INVALID_REQUEST
    if status == 404 and re.search(r"\bmodel", info.message, re.IGNORECASE):
        return C.UNKNOWN_MODEL
    return C.SERVER if status >= 500 else C.INVALID_REQUEST
