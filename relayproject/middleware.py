"""What the admin does about the name and scheme that a request came by, before all else.

Relay paths have no middleware: who answers there depends on neither.
"""

from __future__ import annotations

import logging

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from django.utils.html import format_html

from relay_app.client_address import is_in, parse_address

logger = logging.getLogger(__name__)

SHOWN_CHARS = 100
WRONG_HOST = """<!doctype html><html lang="en"><meta charset="utf-8">
<title>Unknown host name</title>
<body style="font-family: sans-serif; line-height: 1.5; margin: 15vh auto; max-width: 38rem; \
overflow-wrap: anywhere; padding: 0 1rem">
<h1 style="font-size: 1.25rem">This relay does not know the host name {}.</h1>
<p>Its admin answers only to the names in variable <code>ALLOWED_HOSTS</code>. If the name is \
right, add it there, in <code>.env</code> or the environment of the relay, and start the relay \
again.</p>
</body></html>"""


class ProxyMiddleware(MiddlewareMixin):
    """Believes X-Forwarded-Proto from trusted proxies alone; keeps cookies of https to https.

    Refuses a wrong Host with a page and a line that say what to do.
    """

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        """Drop what a client says of its scheme; return a page for a wrong host."""
        peer = parse_address(str(request.META.get("REMOTE_ADDR") or ""))
        if not is_in(peer, settings.TRUSTED_PROXIES):
            request.META.pop("HTTP_X_FORWARDED_PROTO", None)
        try:
            request.get_host()
        except DisallowedHost:
            host = str(request.META.get("HTTP_HOST", ""))[:SHOWN_CHARS]
            logger.warning("host %r is not in ALLOWED_HOSTS: a request was refused", host)
            page = HttpResponseBadRequest(format_html(WRONG_HOST, host or "of the request"))
            page._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001 - Django's own line would say less
            return page
        return None

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        """Mark all cookies of an https request as Secure."""
        if request.is_secure():
            for cookie in response.cookies.values():
                cookie["secure"] = True
        return response
