"""The relay's paths. A table: one row an endpoint, all through the same pipeline."""

from __future__ import annotations

from django.urls import path, re_path

from relay_app import views
from relay_app.core.types import Endpoint
from relay_app.readiness import readyz

ENDPOINTS = (
    Endpoint(
        name="chat",
        dialect="openai",
        path="v1/chat/completions",
        upstream_path="/chat/completions",
    ),
    Endpoint(
        name="messages",
        dialect="anthropic",
        path="v1/messages",
        upstream_path="/messages",
    ),
)

MODELS = Endpoint(name="models", dialect="openai", path="v1/models", upstream_path="")
NO_MESSAGES = Endpoint(name="unknown", dialect="anthropic", path="", upstream_path="")

urlpatterns = [
    *(path(e.path, views.RelayView.as_view(endpoint=e)) for e in ENDPOINTS),
    path(MODELS.path, views.ModelsView.as_view(endpoint=MODELS)),
    path("healthz", views.healthz),
    path("readyz", readyz),
    path("", views.root),
    # The path decides the dialect, also of paths that are no endpoint.
    re_path("^v1/messages", views.UnknownPathView.as_view(endpoint=NO_MESSAGES)),
    re_path("", views.UnknownPathView.as_view()),
]
