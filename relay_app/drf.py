"""A DRF view whose work is awaited on the event loop: no thread, no middleware."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView


class AnyContent(BaseContentNegotiation):
    """Takes every Accept header: DRF's own answers 406 to `text/event-stream`."""

    def select_parser(self, request: Request, parsers: Any) -> BaseParser | None:
        return None  # bodies are read as bytes

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class AsyncAPIView(APIView):
    """DRF's dispatch, awaited. Subclasses write `async def post` and `handle_error`.

    Tokens are checked by the views themselves, which must await the lookup of one that
    the snapshot lacks; so DRF's own authenticators stay empty here.
    """

    authentication_classes: ClassVar[Any] = []
    permission_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = []
    renderer_classes: ClassVar[Any] = [JSONRenderer]
    content_negotiation_class = AnyContent

    async def dispatch(  # type: ignore[override]  # awaited by the lean handler
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Return the answer of the method's handler, or of `handle_error`."""
        self.args, self.kwargs = args, kwargs
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            self.initial(self.request, *args, **kwargs)
            name = (request.method or "").lower()
            handler = getattr(self, name, self.http_method_not_allowed)
            return await handler(self.request, *args, **kwargs)
        except Exception as error:  # outermost edge: every error becomes an answer
            return self.handle_error(error)

    def handle_error(self, error: Exception) -> HttpResponseBase:
        """Return the answer for an error that a handler raised."""
        raise NotImplementedError

    async def options(self, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Refuse, awaitable like the rest: Django wants all handlers of one kind."""
        return await self.http_method_not_allowed(*args, **kwargs)

    async def http_method_not_allowed(  # type: ignore[override]  # awaited, see above
        self, request: Request, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Refuse the method; subclasses say it in the client's dialect."""
        raise NotImplementedError
