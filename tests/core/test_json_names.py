"""A name that an object gives twice is found, however it is spelled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.core.json_names import json_pairs, repeated_name
from relay_app.dialects.base import BodyError, Incoming
from relay_app.dialects.registry import DIALECTS

FORMS = {
    "compact": (",", ":"),
    "python": (", ", ": "),
    "wild": (" ,\n\t", "\r\n :  "),
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", None),
        (b" { } \n", None),
        (b"[]", None),
        (b'[{"a":1,"a":2}]', None),
        (b'{"a":{"b":1,"b":2}}', None),
        (b'{"a":"\\"a\\":1,\\"a\\":2"}', None),
        (b'{"a":1,"a":2}', ("a", 2)),
        (b'{"a":1,"b":[],"a":2,"a":3}', ("a", 3)),
        (b'{"a":1,"\\u0061":2}', ("a", 2)),
        (b'{"\\u0061":1,"a":2}', ("a", 2)),
        (b'{"model":"m","Model":"n"}', ("model", 2)),
        (b'{"messages":1,"me\xc5\xbf\xc5\xbfages":2}', ("messages", 2)),
        (b'{"\xc3\xa9":1,"\xc3\xa9":2}', ("\u00e9", 2)),
        (b'{"":1,"":2}', ("", 2)),
        (b'{"a":"\\ud800","a":2}', ("a", 2)),
        (b'{"a":"\xff","a":2}', ("a", 2)),
        (b'{"a":' + b"9" * 5000 + b',"a":2}', ("a", 2)),
        (b'\xef\xbb\xbf{"a":1,"a":2}', ("a", 2)),
        (b'{"a":1,"maxTokens":2}', None),
        # As long as it would be with a space behind each mark, had it no `a` twice.
        (b'{"a":1,"b":2,"c":3,"d":4,"e":5,"a":123456}', ("a", 2)),
    ],
)
def test_names_that_stand_twice(body, expected):
    assert repeated_name(body) == expected


names = st.text(st.sampled_from('ab"\\\u00e9{},: '), max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)


@given(
    pairs=st.lists(st.tuples(names, values), max_size=8),
    form=st.sampled_from(sorted(FORMS)),
    is_ascii=st.booleans(),
)
def test_all_names_are_compared(pairs, form, is_ascii):
    comma, colon = FORMS[form]

    def written(value):
        return json.dumps(value, separators=FORMS[form], ensure_ascii=is_ascii)

    text = comma.join(written(name) + colon + written(value) for name, value in pairs)

    found = repeated_name(f"{{{text}}}".encode())

    counts = [(name, [n for n, _ in pairs].count(name)) for name, _ in pairs]
    assert found == next(((name, count) for name, count in counts if count > 1), None)


@given(document=values)
def test_pairs_hold_all_of_a_document(document):
    def plain(node):
        if isinstance(node, tuple):
            return {name: plain(value) for name, value in node}
        return [plain(one) for one in node] if isinstance(node, list) else node

    assert plain(json_pairs(json.dumps(document).encode())) == document


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@pytest.mark.parametrize("again", [b'"model"', b'"mod\\u0065l"', b'"MODEL"'])
def test_every_dialect_refuses_two_models(dialect, again):
    body = b'{"model":"secret","messages":[],' + again + b':"allowed"}'
    incoming = Incoming(body=body, path={"model": "m", "method": "generateContent"})

    with pytest.raises(BodyError, match=r"^model is given 2 times; send it once$") as caught:
        DIALECTS[dialect].read_request(incoming)

    assert caught.value.param == "model"
