"""Pages of what is not there, not allowed, or came from elsewhere, with a way back."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say that there is no such page."""
    text = "There is no such page. What it was about may have been deleted."
    return _page(request, 404, "Not found", text)


def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say that the user has no right to the page."""
    text = "Your account has no right to this page. Ask an administrator for a role that has it."
    return _page(request, 403, "Not allowed", text)


def not_from_here(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Say why a form was not taken: its page is too old, or of an address that is not known."""
    text = (
        "The form was not taken: you signed in or out since its page was opened, cookies are off, "
        "or the relay does not know the address of the page. Go back, reload the page and try "
        "again. If that does not help and a proxy stands in front, see CSRF_TRUSTED_ORIGINS in "
        "the README."
    )
    return _page(request, 403, "Not taken", text)


def _page(request: HttpRequest, status: int, title: str, text: str) -> HttpResponse:
    context = {**admin.site.each_context(request), "title": title, "text": text}
    if not context["has_permission"]:
        context["is_nav_sidebar_enabled"] = False  # it names the user
    page = render_to_string("relay_app/admin/refused.html", context, request)
    return HttpResponse(page, status=status)
