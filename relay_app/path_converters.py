"""Parts of Gemini's paths: `/v1beta/models/NAME:METHOD`."""

from __future__ import annotations

from django.urls.converters import StringConverter


class GeminiModel(StringConverter):
    """A model's resource name; its own collection is no part of the name clients mean."""

    regex = r"(?:models|tunedModels)/.+"

    def to_python(self, value: str) -> str:
        """Return the model as channels list it."""
        return value.removeprefix("models/")


class GeminiModelAlone(GeminiModel):
    """The same with no method behind it."""

    regex = r"(?!.*:[A-Za-z]+\Z)" + GeminiModel.regex


class GeminiContentMethod(StringConverter):
    """What generates content."""

    regex = "generateContent|streamGenerateContent"


class GeminiEmbedMethod(StringConverter):
    """What embeds."""

    regex = "embedContent|batchEmbedContents"
