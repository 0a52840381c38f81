"""Parameters that belong to another model than the one a request ends up with. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Parameters, and the models that answer 400 to them. Models that no row names take all:
# a parameter too many is told by the upstream, one dropped in silence by nobody.
_REFUSED = tuple(
    (frozenset(names.split()), re.compile(pattern))
    for names, pattern in (
        (
            "reasoning_effort reasoning verbosity",
            r"gpt-(3\.5|4)|chatgpt-4o|gpt-5[\d.]*-chat|claude-(instant|[123])|gemini-(1|2\.0)",
        ),
        (
            "thinking",
            r"gpt-|chatgpt-|o\d|claude-(instant|[12]\b|3-(haiku|sonnet|opus|5-))",
        ),
        (
            "output_config",
            r"gpt-|chatgpt-|o\d|claude-(instant|[123]\b|(opus|sonnet)-4(-0|-2025|$))",
        ),
        (
            "temperature top_p presence_penalty frequency_penalty logprobs top_logprobs logit_bias",
            r"o\d|gpt-5(-mini|-nano|-pro|-codex)?(-2025[\d-]*)?$",
        ),
    )
)


def drop_foreign(document: Mapping[str, Any], *, asked: str, target: str) -> Mapping[str, Any]:
    """Return `document` without the parameters that `target` refuses and `asked` may take.

    The same object when there are none, as always for one model. What `asked` itself refuses
    stays: the client shall hear of its own mistake.
    """
    if asked == target:
        return document
    asked, target = _bare(asked), _bare(target)
    foreign = {
        name
        for names, refusers in _REFUSED
        if refusers.match(target) and not refusers.match(asked)
        for name in names.intersection(document)
    }
    if not foreign:
        return document
    return {name: value for name, value in document.items() if name not in foreign}


def _bare(model: str) -> str:
    """Return the name without its vendor: `openai/gpt-4o` is `gpt-4o`."""
    return model.rpartition("/")[2].lower()
