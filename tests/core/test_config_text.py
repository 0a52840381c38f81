"""The text of a configuration file: YAML or JSON, and where exactly it is neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_app.config_file import load_config, read_config
from relay_app.config_text import ConfigError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty; a mapping with version, options, channels, ... is wanted"),
        ("# nothing\n", "is empty; a mapping with version, options, channels, ... is wanted"),
        ("- a", "a list is at the top, where a mapping is wanted"),
        ("just text", "'just text' is at the top, where a mapping is wanted"),
        ("a: [", "not valid YAML: line 2, column 1: did not find expected node content"),
        ("a: 1\nb: 2\na: 3", "not valid YAML: line 3, column 1: duplicate key 'a'"),
        ("a: {b: {c: 1, c: 2}}", "not valid YAML: line 1, column 15: duplicate key 'c'"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{\n\t"a": 1,\n\t"b"\n}', "not valid JSON: line 4 column 1: Expecting ':' delimiter"),
        ("? [a]\n: 1", "not valid YAML: line 1, column 3: a key that is a list or mapping"),
        (
            "a: 2020-13-45",
            "not valid YAML: line 1, column 4: a value that can't be read as timestamp",
        ),
        ("a: !!bool x", "not valid YAML: line 1, column 4: a value that can't be read as bool"),
        (
            "a: !!python/object:os.system x",
            "not valid YAML: line 1, column 4: could not determine a constructor for the tag"
            " 'tag:yaml.org,2002:python/object:os.system'",
        ),
        ("a: 1\n---\nb: 2", "not valid YAML: line 2, column 1: but found another document"),
        ("a: \x00", "not valid YAML: control characters are not allowed"),
    ],
)
def test_a_text_that_is_no_mapping_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(text, environ={})

    assert caught.value.problems == (reason,)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file or directory"):
        read_config(tmp_path / "none.yaml", environ={})
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        read_config(tmp_path, environ={})
    (tmp_path / "latin.yaml").write_bytes(b"version: 1 # \xe9t\xe9")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 13\)"):
        read_config(tmp_path / "latin.yaml", environ={})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"version": 1,}', "not valid JSON: line 1 column 15: "),
        ("version: 1", "not valid JSON: line 1 column 1: Expecting value"),
        ("", "not valid JSON: line 1 column 1: Expecting value"),
        ('{"a": ' * 100_000, "not valid JSON: nested too deeply"),
        ('{"a": ' + "1" * 10_000 + "}", "not valid JSON: a very large number"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
    ],
)
def test_a_json_file_is_judged_as_json(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "relay.JSON"
    file.write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_config(file, environ={})

    assert caught.value.problems[0].startswith(reason)


def test_a_byte_order_mark_and_json_with_tabs_are_read(tmp_path: Path) -> None:
    file = tmp_path / "relay.json"
    file.write_text('\ufeff{\n\t"version": 1,\n\t"groups": [{"name": "vip"}]\n}')

    config = read_config(file, environ={})

    assert config.problems == []
    assert config.groups[0].name == "vip"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "- " * 5000, "? " * 5000])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        load_config(text, environ={})
