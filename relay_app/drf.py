"""A DRF view whose work is awaited on the event loop: no thread, no middleware."""

from __future__ import annotations

import asyncio
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from relay_app.errors import STOPPED, RelayStopping, is_stopping


class AnyContent(BaseContentNegotiation):
    """Takes every Accept header: DRF's own answers 406 to `text/event-stream`."""

    def select_parser(self, request: Request, parsers: Any) -> BaseParser | None:
        return None  # bodies are read as bytes

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


def _go_on() -> None:
    """Take back the cancellation of the running task: it is to answer."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


class AsyncAPIView(APIView):
    """DRF's dispatch, awaited. Subclasses write handlers and the hooks below.

    Tokens are checked by the views themselves, which must await the lookup of one that
    the snapshot lacks; so DRF's own authenticators stay empty here.
    """

    authentication_classes = []
    permission_classes = []
    throttle_classes = []
    renderer_classes = [JSONRenderer]
    content_negotiation_class = AnyContent

    async def dispatch(  # type: ignore[override]  # awaited by the lean handler
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Return the answer of the method's handler, or of `handle_error`."""
        self.args, self.kwargs = args, kwargs
        self.begin(request)
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            self.initial(self.request, *args, **kwargs)
            name = (request.method or "").lower()
            handler = getattr(self, name, None) if name in self.http_method_names else None
            response = await (handler or self.refuse_method)(self.request)
        except Exception as error:  # noqa: BLE001  # outermost edge: errors become answers
            response = self.handle_error(error)
        except asyncio.CancelledError as error:
            if not is_stopping(error):  # the client hung up
                self.abandoned()
                raise
            _go_on()
            response = self.handle_error(RelayStopping(STOPPED))
        except BaseException:
            self.abandoned()
            raise
        self.finish(response)
        await self.settled()
        return response

    def begin(self, request: HttpRequest) -> None:
        """Prepare for `request`; called before anything else."""
        raise NotImplementedError

    def handle_error(self, error: Exception) -> HttpResponseBase:
        """Return the answer for an error that a handler raised."""
        raise NotImplementedError

    def finish(self, response: HttpResponseBase) -> None:
        """Take note of the answer before it is sent."""
        raise NotImplementedError

    async def settled(self) -> None:
        """Return once the client may learn of the answer."""
        raise NotImplementedError

    def abandoned(self) -> None:
        """Take note that the client went away before there was an answer."""
        raise NotImplementedError

    async def refuse_method(self, request: Request) -> HttpResponseBase:
        """Raise what a method without a handler means."""
        raise NotImplementedError

    # An awaitable one of our own: Django wants all handlers of a view of one kind.
    async def options(  # type: ignore[override]  # see above
        self, request: Request, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Refuse OPTIONS like any method without a handler."""
        return await self.refuse_method(request)
