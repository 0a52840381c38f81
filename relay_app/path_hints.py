"""What a client meant that asked for a path which is none: most often its base URL is wrong."""

from __future__ import annotations

from django.urls import Resolver404, resolve

from relay_app.core.types import Endpoint

# SDKs of OpenAI leave the version to the base URL; others add it themselves.
BASES = {
    "openai": "the base URL of OpenAI clients ends in /v1, once",
    "anthropic": "the base URL of Anthropic clients has no /v1",
    "gemini": "the base URL of Gemini clients has no version",
}
VERSIONS = ("", "v1/", "v1beta/")
# What is looked at of paths that anybody can send.
MAX_CHARS = 200
MAX_DROPPED = 3


def path_hint(path: str) -> str:
    """Return `; did you mean ...` with what the base URL should be, or nothing."""
    if len(path) > MAX_CHARS:
        return ""
    parts = path.strip("/").split("/")
    for dropped in range(min(len(parts), MAX_DROPPED + 1)):
        for version in VERSIONS:
            meant = f"/{version}{'/'.join(parts[dropped:])}"
            endpoint = _endpoint(meant)
            if endpoint is not None:
                family = endpoint.dialect.partition("_")[0]
                return f"; did you mean {meant}? {BASES[family]}"
    return ""


def _endpoint(path: str) -> Endpoint | None:
    """Return the endpoint of the path, if it is one."""
    try:
        view = resolve(path, urlconf="relay_app.urls").func
    except Resolver404:
        return None
    endpoint = getattr(view, "view_initkwargs", {}).get("endpoint")
    return endpoint if isinstance(endpoint, Endpoint) and endpoint.name != "unknown" else None
