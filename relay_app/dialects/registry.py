"""The client dialects, by the name that endpoints use."""

from __future__ import annotations

from collections.abc import Mapping

from relay_app.dialects.anthropic import AnthropicCount, AnthropicMessages
from relay_app.dialects.base import Dialect
from relay_app.dialects.gemini import GeminiContent, GeminiDialect, GeminiEmbeddings
from relay_app.dialects.openai_chat import OpenAIChat
from relay_app.dialects.openai_completions import OpenAICompletions
from relay_app.dialects.openai_json import OpenAIForm, OpenAIJson
from relay_app.dialects.openai_responses import OpenAIResponses

# What OpenAI's API takes where the client names no model (its API reference).
MODERATION_MODEL = "omni-moderation-latest"
IMAGE_MODEL = "dall-e-2"

DIALECTS: Mapping[str, Dialect] = {
    "openai": OpenAIChat(),
    "openai_completions": OpenAICompletions(),
    "openai_responses": OpenAIResponses(),
    "openai_embeddings": OpenAIJson(),
    "openai_moderations": OpenAIJson(default_model=MODERATION_MODEL),
    "openai_images": OpenAIJson(default_model=IMAGE_MODEL, can_stream=True),
    "openai_image_edits": OpenAIForm(default_model=IMAGE_MODEL, can_stream=True),
    "openai_transcriptions": OpenAIForm(can_stream=True, has_any_type=True),
    "openai_speech": OpenAIJson(can_stream=True, has_any_type=True),
    "openai_rerank": OpenAIJson(),
    "anthropic": AnthropicMessages(),
    "anthropic_count": AnthropicCount(),
    "gemini": GeminiContent(),
    "gemini_embeddings": GeminiEmbeddings(),
    "gemini_count": GeminiDialect(),
}
