"""The address of a proxy, read from a channel's setting. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from relay_app.core.addresses import address_fault

# A SOCKS proxy resolves names itself, which some write as socks5h.
SCHEMES = ("http", "https", "socks5", "socks5h")
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
EXAMPLE = "http://user:password@host:3128 or socks5://host:1080"
MAX_CHARS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Where a proxy listens and who we are to it. `repr` never shows the credentials."""

    scheme: str
    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    # As it was written, for libraries that want one text.
    url: str = field(default="", repr=False)

    @property
    def is_socks(self) -> bool:
        """Return whether it carries connections of any kind, not HTTP only."""
        return self.scheme.startswith("socks")


@lru_cache(maxsize=1024)
def read_proxy(url: str) -> Proxy:
    """Return the proxy at `url`; raise ValueError, whose text never holds credentials."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
    except ValueError:
        raise ValueError(f"a proxy is written like {EXAMPLE}") from None
    if parts.scheme not in SCHEMES:
        raise ValueError(f"a proxy is {' or '.join(SCHEMES)}, written like {EXAMPLE}")
    is_clean = url.isprintable() and url.isascii() and " " not in url and len(url) <= MAX_CHARS
    if not host or port == 0 or not is_clean:
        raise ValueError(f"a proxy is written like {EXAMPLE}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"a proxy has no path, query or fragment; it is written like {EXAMPLE}")
    if max(len(user.encode()), len(password.encode())) > 255:
        raise ValueError("the user and password of a proxy may have 255 bytes each")
    if ":" in user or not (user + password).isprintable():
        raise ValueError("the user of a proxy has no colon, nor either control characters")
    return Proxy(
        scheme=parts.scheme,
        host=host,
        port=port or _DEFAULT_PORTS[parts.scheme],
        user=user,
        password=password,
        url=url,
    )


def check_proxy(value: object) -> str | None:
    """Return why `value` is no proxy that a channel can use, else None; empty is none at all."""
    if not isinstance(value, str):
        return f"a proxy is a text like {EXAMPLE}"
    if value:
        try:
            return address_fault(read_proxy(value).host)
        except ValueError as error:
            return str(error)
    return None
