"""The relay's paths. A table: one row an endpoint, all through the same pipeline."""

from __future__ import annotations

from django.urls import path, re_path, register_converter

from relay_app import account_views, readiness, views
from relay_app.core.types import Endpoint
from relay_app.path_converters import (
    GeminiContentMethod,
    GeminiEmbedMethod,
    GeminiModel,
    GeminiModelAlone,
)

register_converter(GeminiModel, "gemini_model")
register_converter(GeminiModelAlone, "gemini_model_alone")
register_converter(GeminiContentMethod, "gemini_content")
register_converter(GeminiEmbedMethod, "gemini_embed")


def _gemini(version: str) -> tuple[Endpoint, ...]:
    """Return Gemini's endpoints under one version of its API; SDKs differ in their default."""
    return (
        Endpoint(
            name="gemini",
            dialect="gemini",
            path=f"{version}/<gemini_model:model>:<gemini_content:method>",
            upstream_path="/{model}:{method}",
        ),
        Endpoint(
            name="gemini_embeddings",
            dialect="gemini_embeddings",
            path=f"{version}/<gemini_model:model>:<gemini_embed:method>",
            upstream_path="/{model}:{method}",
        ),
        Endpoint(
            name="gemini_count",
            dialect="gemini_count",
            path=f"{version}/<gemini_model:model>:countTokens",
            upstream_path="/{model}:countTokens",
            is_free=True,
        ),
    )


ENDPOINTS = (
    Endpoint(
        name="chat",
        dialect="openai",
        path="v1/chat/completions",
        upstream_path="/chat/completions",
    ),
    Endpoint(
        name="completions",
        dialect="openai_completions",
        path="v1/completions",
        upstream_path="/completions",
    ),
    Endpoint(
        name="responses",
        dialect="openai_responses",
        path="v1/responses",
        upstream_path="/responses",
    ),
    Endpoint(
        name="response",
        dialect="openai_responses",
        path="v1/responses/<str:response_id>",
        upstream_path="/responses/{response_id}",
        method="GET",
        is_free=True,
    ),
    Endpoint(
        name="embeddings",
        dialect="openai_embeddings",
        path="v1/embeddings",
        upstream_path="/embeddings",
    ),
    Endpoint(
        name="moderations",
        dialect="openai_moderations",
        path="v1/moderations",
        upstream_path="/moderations",
    ),
    Endpoint(
        name="images",
        dialect="openai_images",
        path="v1/images/generations",
        upstream_path="/images/generations",
    ),
    Endpoint(
        name="image_edits",
        dialect="openai_image_edits",
        path="v1/images/edits",
        upstream_path="/images/edits",
    ),
    Endpoint(
        name="image_variations",
        dialect="openai_image_edits",
        path="v1/images/variations",
        upstream_path="/images/variations",
    ),
    Endpoint(
        name="transcriptions",
        dialect="openai_transcriptions",
        path="v1/audio/transcriptions",
        upstream_path="/audio/transcriptions",
    ),
    Endpoint(
        name="translations",
        dialect="openai_transcriptions",
        path="v1/audio/translations",
        upstream_path="/audio/translations",
    ),
    Endpoint(
        name="speech",
        dialect="openai_speech",
        path="v1/audio/speech",
        upstream_path="/audio/speech",
    ),
    Endpoint(
        name="rerank",
        dialect="openai_rerank",
        path="v1/rerank",
        upstream_path="/rerank",
    ),
    Endpoint(
        name="messages",
        dialect="anthropic",
        path="v1/messages",
        upstream_path="/messages",
    ),
    Endpoint(
        name="count_tokens",
        dialect="anthropic_count",
        path="v1/messages/count_tokens",
        upstream_path="/messages/count_tokens",
        is_free=True,
    ),
    *_gemini("v1beta"),
    *_gemini("v1"),
)

MODELS = Endpoint(name="models", dialect="openai", path="v1/models", upstream_path="")
MODEL = Endpoint(name="model", dialect="openai", path="v1/models/<path:model>", upstream_path="")
GEMINI_MODELS = Endpoint(name="models", dialect="gemini", path="v1beta/models", upstream_path="")
GEMINI_MODEL = Endpoint(
    name="model", dialect="gemini", path="v1beta/<gemini_model_alone:model>", upstream_path=""
)
NO_MESSAGES = Endpoint(name="unknown", dialect="anthropic", path="", upstream_path="")
NO_GEMINI = Endpoint(name="unknown", dialect="gemini", path="", upstream_path="")
MODEL_LISTS = (MODELS, MODEL, GEMINI_MODELS, GEMINI_MODEL)

VIEWS = {"POST": views.RelayView, "GET": views.StoredResponseView}

urlpatterns = [
    *(path(e.path, VIEWS[e.method].as_view(endpoint=e)) for e in ENDPOINTS),
    *(path(e.path, views.ModelsView.as_view(endpoint=e)) for e in MODEL_LISTS),
    path("v1/usage", account_views.UsageView.as_view()),
    path("v1/redeem", account_views.RedeemView.as_view()),
    path("v1/dashboard/billing/subscription", account_views.SubscriptionView.as_view()),
    path("v1/dashboard/billing/usage", account_views.SpendingView.as_view()),
    path("dashboard/billing/subscription", account_views.SubscriptionView.as_view()),
    path("dashboard/billing/usage", account_views.SpendingView.as_view()),
    path("healthz", readiness.healthz),
    path("readyz", readiness.readyz),
    path("", readiness.root),
    # The path decides the dialect, also of paths that are no endpoint.
    re_path("^v1/messages", views.UnknownPathView.as_view(endpoint=NO_MESSAGES)),
    re_path("^v1beta(?:/|$)", views.UnknownPathView.as_view(endpoint=NO_GEMINI)),
    re_path("", views.UnknownPathView.as_view()),
]
