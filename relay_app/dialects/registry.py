"""The client dialects, by the name that endpoints use."""

from __future__ import annotations

from collections.abc import Mapping

from relay_app.dialects.anthropic import AnthropicMessages
from relay_app.dialects.base import Dialect
from relay_app.dialects.openai_chat import OpenAIChat

DIALECTS: Mapping[str, Dialect] = {"openai": OpenAIChat(), "anthropic": AnthropicMessages()}
