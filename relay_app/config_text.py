"""Turn the text of a configuration file, YAML or JSON, into plain values; pure."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import yaml

from relay_app.config_fields import shown


class ConfigError(Exception):
    """The file is refused; `problems` holds one line for each reason."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def parse(text: str, *, is_json: bool) -> object:
    """Return what `text` holds; raises ConfigError with the line and column of a fault."""
    if is_json:
        return _parse_json(text)
    # JSON may be indented by tabs, which YAML refuses, and is read much faster as itself.
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_json_object)
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError) and "\n\t" in text:
                raise ConfigError(_no_json(error)) from None
            # Else a flow mapping of YAML, or an error that YAML names as well.
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"not valid YAML: {at}{error.problem or 'no reason known'}") from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        reason = getattr(error, "reason", None) or "nested too deeply"
        raise ConfigError(f"not valid YAML: {reason}") from None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_json_object)
    except (ValueError, RecursionError) as error:
        raise ConfigError(_no_json(error)) from None


def _no_json(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: line {error.lineno} column {error.colno}: {error.msg}"
    is_deep = isinstance(error, RecursionError)
    return f"not valid JSON: {'nested too deeply' if is_deep else 'a very large number'}"


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(f"duplicate key {shown(name)}")
        found[name] = value
    return found


class _Loader(yaml.CSafeLoader):
    """YAML without duplicate keys, whose errors all name their line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        # PyYAML lets whatever its scalar readers raise through: `2020-13-45`, `!!bool x`.
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            problem = f"a value that can't be read as {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # keys may repeat those of a merged mapping
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                problem = "a key that is a list or mapping"
            elif key in seen:
                problem = f"duplicate key {shown(key)}"
            else:
                seen.add(key)
                continue
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        return super().construct_mapping(node, deep=deep)
