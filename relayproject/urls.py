"""URLs of the Django side. Relay paths never come here; see `asgi.py`."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

urlpatterns = [
    path("admin/", admin.site.urls),
]
