"""Who asks: the token of a request, checked against the snapshot."""

from __future__ import annotations

import time
from urllib.parse import unquote, unquote_plus

from django.http import HttpRequest

from billing_app.core.types import TokenView
from billing_app.services import key_hash
from relay_app.client_address import is_in, parse_address
from relay_app.errors import AddressNotAllowed, InvalidToken
from relay_app.snapshot import SnapshotFeed

# Where SDKs put a key that is no Bearer: Anthropic's, Google's, Midjourney proxies'.
KEY_HEADERS = ("HTTP_X_API_KEY", "HTTP_X_GOOG_API_KEY", "HTTP_MJ_API_SECRET")
HOW = "send your token as 'Authorization: Bearer <token>'"


async def find_token(request: HttpRequest, feed: SnapshotFeed) -> TokenView:
    """Return the token that `request` carries, usable or not; raise InvalidToken.

    Reads the snapshot; the database is asked once for a token that is not in it.
    """
    key = find_key(request)
    if not key:
        raise InvalidToken(f"no token was sent; {HOW}")
    hashed = key_hash(key)
    token = feed.current.tokens.by_hash.get(hashed) or await feed.find_token(hashed)
    if token is None:
        raise InvalidToken("the token is wrong; check it for missing characters")
    return token


def check_token(token: TokenView, *, address: str) -> None:
    """Raise why `token` can't be used by a client at `address`, if it can't.

    InvalidToken when nobody can, AddressNotAllowed when only others can.
    """
    if not token.is_enabled:
        raise InvalidToken("the token is disabled; ask who issued it")
    if token.is_expired(time.time()):
        raise InvalidToken("the token is expired; ask who issued it for a new one")
    if token.networks and not is_in(parse_address(address), token.networks):
        raise AddressNotAllowed(f"this token may not be used from {address or 'where you are'}")


def find_key(request: HttpRequest) -> str:
    """Return the client's key from wherever SDKs put it, or an empty text.

    The path decides the dialect, never the header: current Anthropic SDKs send Bearer.
    """
    scheme, _, credential = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return str(credential).strip()
    for header in KEY_HEADERS:
        if request.META.get(header):
            return str(request.META[header]).strip()
    pairs = str(request.META.get("QUERY_STRING", "")).split("&")
    return next((unquote_plus(p.partition("=")[2]).strip() for p in pairs if _name(p) == "key"), "")


def query_without_key(query: str, key: str) -> str:
    """Return the query string as it came, without `key`, the client's own, whatever the name of
    the parameter, and without any `key=`."""
    return "&".join(
        pair for pair in query.split("&") if _name(pair).lower() != "key" and not _holds(pair, key)
    )


def _name(pair: str) -> str:
    return unquote_plus(pair.partition("=")[0])


def _holds(pair: str, key: str) -> bool:
    return bool(key) and (key in unquote_plus(pair) or key in unquote(pair))
