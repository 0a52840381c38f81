"""Forms with files: their text fields are found and set, all other bytes stay."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relay_app.core.multipart import (
    MAX_LOOKALIKES,
    MAX_PARTS,
    FormError,
    boundary_of,
    file_bytes,
    is_form,
    read_fields,
    set_fields,
)

FORM = 'multipart/form-data; boundary="xYz"'


def text(name, value):
    return f'Content-Disposition: form-data; name="{name}"'.encode(), value


def file(name, content, filename="a.bin"):
    head = f'Content-Disposition: form-data; name="{name}"; filename="{filename}"'.encode()
    return head + b"\r\nContent-Type: application/octet-stream", content


def form(*parts, boundary=b"xYz", end=b"\r\n", last=None):
    """Return a form; parts are (header, content)."""
    out = b""
    for head, content in parts:
        lines = head.replace(b"\r\n", end) + end if head else b""
        out += b"--" + boundary + end + lines + end + content + end
    return out + b"--" + boundary + b"--" + (end if last is None else last)


def refusal(body, content_type=FORM):
    with pytest.raises(FormError) as caught:
        read_fields(body, content_type)
    return str(caught.value)


# -- reading -------------------------------------------------------------------


def test_files_are_measured_alone():
    body = form(text("model", b"whisper"), file("file", b"12345"), file("more", b"\r\n"))

    assert file_bytes(body, FORM) == 7


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("last", [b"", b"\r\n", b"\n", b"--epilogue", b" \r\n\r\n"])
def test_text_fields_are_found_in_any_order(end, last):
    parts = [text("a", b"1"), file("file", b"\0\xff\r\n\n" * 9), text("model", b"m\xc3\xa9")]
    body = form(*parts, end=end, last=last if last != b"--epilogue" else end + b"epilogue")

    assert read_fields(body, FORM) == {"a": ["1"], "file": [None], "model": ["mé"]}


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b'Content-Disposition: form-data; name="model"', "model"),
        (b"content-disposition: form-data; name=model", "model"),
        (b"CONTENT-DISPOSITION:form-data;name=model", "model"),
        (b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"', "model"),
        (b'Content-Disposition: form-data;\r\n name="model"', "model"),
        (b'Content-Disposition: form-data; NAME="model"', "model"),
        (b'Content-Disposition: form-data; name="a; filename=b"', "a; filename=b"),
        (b'Content-Disposition: form-data; name="a\\"b"', 'a"b'),
        (b'Content-Disposition: form-data; name="timestamp_granularities[]"', None),
        (b"Content-Disposition: form-data", ""),
        (b"X-Other: 1", ""),
    ],
)
def test_headers_of_parts_are_read_as_clients_write_them(head, name):
    name = "timestamp_granularities[]" if name is None else name

    assert read_fields(form((head, b"v")), FORM) == {name: ["v"]}


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=xYz",
        'Multipart/Form-Data; charset=utf-8; BOUNDARY="xYz"',
        "multipart/form-data;boundary=xYz;charset=utf-8",
        "multipart/form-data ; boundary = xYz",
    ],
)
def test_the_boundary_is_read_quoted_or_not(content_type):
    assert boundary_of(content_type) == b"xYz"
    assert is_form(content_type)


def test_values_may_be_empty_or_of_many_lines():
    body = form(text("a", b""), text("b", b"1\r\n2\r\n\r\n3\r\n"), (b"", b"x"))

    assert read_fields(body, FORM) == {"a": [""], "b": ["1\r\n2\r\n\r\n3\r\n"], "": ["x"]}


def test_a_part_without_a_line_end_of_its_own_is_empty():
    head, _ = text("a", b"")

    body = b"--xYz\r\n" + head + b"\r\n\r\n--xYz\r\n" + head + b"\r\n\r\n1\r\n--xYz--"

    assert read_fields(body, FORM) == {"a": ["", "1"]}


def test_text_before_the_first_boundary_says_nothing():
    assert read_fields(b"hello\r\n" + form(text("a", b"1")), FORM) == {"a": ["1"]}


@pytest.mark.parametrize(
    "junk",
    [
        b"--xYz",
        b"\n--xYz\r\n",
        b"\r\n--xYzz\r\n",
        b"\r\n--xY\r\n",
        b"\r\n-xYz--\r\n",
        b"\r\n--xYz-\r\n",
        b"\r\n--xYz--x\r\n",
        b"\r\n--xYz \r",
        b"\r--xYz\r",
        b"\r\n--xYz: \r\nContent-Disposition: form-data; name=model\r\n\r\nno",
    ],
)
def test_what_only_looks_like_a_boundary_is_content(junk):
    body = form(file("file", b"a" + junk + b"b"), text("model", b"m"))

    assert read_fields(body, FORM) == {"file": [None], "model": ["m"]}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "does not begin with the boundary"),
        (b"{}", "does not begin with the boundary"),
        (b"--other\r\n", "does not begin with the boundary"),
        (b"x--xYz\r\n", "does not begin with the boundary"),
        (b"--xYzz\r\n" + form(text("a", b"1")), "does not begin with the boundary"),
        (b"--xYz\r\nX: 1", "header of a part"),
        (b"--xYz\r\nX: " + b"1" * 20_000 + b"\r\n\r\n", "header of a part"),
        (form(text("a", b"1"), last=b"").removesuffix(b"--xYz--"), "no closing boundary"),
        (form(text("a", b"1"), last=b"").removesuffix(b"--"), "no closing boundary"),
        (form(text("a", b"1")) + form(text("a", b"2")), "goes on behind its closing"),
        (form((b'Content-Disposition: form-data; name="a"; name="b"', b"")), "two names"),
        (form((b"Content-Disposition: form-data; name=\"a\"; name*=utf-8''b", b"")), "name*"),
        (form((b"Content-Disposition: form-data; NAME*0=a; name*1=b", b"")), "name*"),
        (form((text("a", b"")[0] + b"\r\n" + text("b", b"")[0], b"")), "two names"),
        (form(*[text("a", b"")] * (MAX_PARTS + 1)), "more than 1000 parts"),
        (
            form(file("f", b"\r\n--xYz!" * (MAX_LOOKALIKES + 1))),
            "holds the boundary of the form",
        ),
    ],
)
def test_a_bad_form_is_told_why(body, says):
    assert says in refusal(body)


@pytest.mark.parametrize(
    ("content_type", "says"),
    [
        ("application/json", "'application/json'; send multipart/form-data"),
        ("multipart/mixed; boundary=xYz", "send multipart/form-data"),
        ("", "send multipart/form-data"),
        ("multipart/form-data", "names no boundary"),
        ('multipart/form-data; boundary=""', "names no boundary"),
        ("multipart/form-data; boundary=" + "x" * 300, "names no boundary"),
        ("multipart/form-data; boundary=é", "outside ASCII"),
    ],
)
def test_a_wrong_content_type_is_told(content_type, says):
    assert says in refusal(form(text("a", b"1")), content_type)


@pytest.mark.parametrize(
    "filler", [b"\0", b"\r\n", b"-", b"\r\n-", b"\r\n--", b"\r\n--xY", b" ", b"--xYz"]
)
def test_large_files_take_linear_time(filler):
    size = 16 * 2**20
    body = form(file("file", filler * (size // len(filler))), text("model", b"m"))

    began_s = time.perf_counter()

    assert read_fields(body, FORM)["model"] == ["m"]
    assert time.perf_counter() - began_s < 2


# -- setting -------------------------------------------------------------------


def test_a_field_is_set_where_it_stands():
    parts = [file("file", b"\r\n\0"), text("model", b"old"), text("b", b"2")]
    want = [file("file", b"\r\n\0"), text("model", "nëw".encode()), text("b", b"2")]

    assert set_fields(form(*parts), FORM, {"model": "nëw"}) == form(*want)


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_field_that_was_not_there_is_added(end):
    body = form(file("file", b"x"), end=end)

    changed = set_fields(body, FORM, {"model": "m"})

    assert changed == form(text("model", b"m"), file("file", b"x"), end=end)


def test_every_part_of_the_name_is_set_but_no_file():
    body = form(text("a", b"1"), file("a", b"2"), text("a", b"3"))

    assert set_fields(body, FORM, {"a": ""}) == form(
        text("a", b""), file("a", b"2"), text("a", b"")
    )


@pytest.mark.parametrize("value", ["x\r\n--xYz--", "--xYz"])
def test_a_value_can_not_end_its_part(value):
    with pytest.raises(FormError, match="holds the boundary"):
        set_fields(form(text("a", b"1")), FORM, {"a": value})


# -- properties ----------------------------------------------------------------

TOKEN = st.text(
    "abcXYZ0189'()+_,-./:=?", min_size=1, max_size=70
)  # RFC 2046 but for the space, which may not be last
NAMES = st.text(st.characters(codec="utf-8", exclude_characters='\r\n"\\\0'), max_size=9)
VALUES = st.text(st.characters(codec="utf-8"), max_size=40)


@st.composite
def forms(draw):
    """A boundary and parts, the files rich in what looks like it."""
    boundary = draw(TOKEN).encode()
    junk = st.sampled_from(
        [b"\r\n", b"\n", b"\r", b"--", b"-", b"--" + boundary, b"\r\n--" + boundary + b"x", b" ",
         b"\r\n--" + boundary[:-1], boundary]
    )  # fmt: skip
    content = st.lists(junk | st.binary(max_size=9), max_size=12).map(b"".join)
    parts = draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("text"), NAMES, VALUES.map(str.encode)),
                st.tuples(st.just("file"), NAMES, content),
            ),
            max_size=6,
        )
    )
    end = draw(st.sampled_from([b"\r\n", b"\n"]))
    line = end + b"--" + boundary
    for _, name, value in parts:
        assume(b"--" + boundary not in name.encode())
        rest = (end + value + end).split(line)[1:]
        assume(not any(r.lstrip(b" \t").startswith((b"\r", b"\n", b"--")) or not r for r in rest))
    return boundary, parts, end


def built(boundary, parts, end):
    rows = [
        text(name, value) if kind == "text" else file(name, value) for kind, name, value in parts
    ]
    return form(*rows, boundary=boundary, end=end)


def content_type_of(boundary):
    return f'multipart/form-data; boundary="{boundary.decode()}"'


@given(forms())
def test_what_a_client_put_in_is_found(made):
    boundary, parts, _ = made
    want = {}
    for kind, name, value in parts:
        values = want.setdefault(name, [])
        values.append(value.decode() if kind == "text" else None)

    assert read_fields(built(*made), content_type_of(boundary)) == want


@given(forms(), st.text("abc/é-", max_size=9))
def test_setting_a_field_changes_nothing_else(made, model):
    boundary, parts, end = made
    assume(boundary not in model.encode())
    assume(all(name != "model" for _, name, _ in parts))
    where = len(parts) // 2
    row = ("text", "model", b"old")
    body = built(boundary, [*parts[:where], row, *parts[where:]], end)

    changed = set_fields(body, content_type_of(boundary), {"model": model})

    row = ("text", "model", model.encode())
    assert changed == built(boundary, [*parts[:where], row, *parts[where:]], end)
    assert set_fields(changed, content_type_of(boundary), {"model": "old"}) == body


@given(forms(), st.text("abc/é-", max_size=9))
def test_adding_a_field_changes_nothing_else(made, model):
    boundary, parts, end = made
    assume(boundary not in model.encode())
    assume(all(name != "model" for _, name, _ in parts))
    body = built(*made)

    changed = set_fields(body, content_type_of(boundary), {"model": model})

    assert changed == built(boundary, [("text", "model", model.encode()), *parts], end)


PIECES = st.sampled_from([b"--xYz", b"\r\n", b"\n", b"--", b"a:", text("model", b"")[0], b"\0"])


@given(st.binary(max_size=200) | st.lists(PIECES, max_size=30).map(b"".join))
def test_no_bytes_make_it_fail_otherwise(body):
    try:
        fields = read_fields(body, FORM)
    except FormError:
        return
    assert all(
        value is None or isinstance(value, str) for values in fields.values() for value in values
    )
    assert read_fields(set_fields(body, FORM, {"new": "1"}), FORM)["new"][0] == "1"
