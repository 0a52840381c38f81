"""System checks of the environment: a misspelled variable must not pass in silence."""

from __future__ import annotations

import difflib
import os
from typing import Any

from django.core.checks import CheckMessage, register
from django.core.checks import Warning as CheckWarning

from relayproject import env

PREFIX = "RELAY_"


@register()
def unknown_variables(**_: Any) -> list[CheckMessage]:
    """Return a warning for each RELAY_ variable that nothing reads."""
    return [
        CheckWarning(
            f"Environment variable {name} is not read by anything.",
            hint=_hint(name),
            id="relayproject.W001",
        )
        for name in sorted(os.environ)
        if name.startswith(PREFIX) and name not in env.known_names
    ]


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, env.known_names, n=1)
    return f"Did you mean {near[0]}?" if near else "See .env.example for the names."
