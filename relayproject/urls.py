"""URLs of the Django side. Relay paths never come here; see `asgi.py`."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from relay_app.admin.why import why

handler403 = "relay_app.admin.refusals.not_allowed"
handler404 = "relay_app.admin.refusals.not_found"

urlpatterns = [
    path("admin/why/", admin.site.admin_view(why), name="why"),
    path("admin/", admin.site.urls),
]
