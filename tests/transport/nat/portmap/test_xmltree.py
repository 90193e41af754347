"""XML of strangers: what is read, and what is not even begun."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.nat.portmap.defaults import XML_DEPTH, XML_ELEMENTS
from shoal.transport.nat.portmap.xmltree import parse

LAUGHS = (
    '<!DOCTYPE a [<!ENTITY b "ha">'
    + "".join(f'<!ENTITY b{n} "{f"&b{n - 1 if n else str()};" * 10}">' for n in range(9))
    + "]><a>&b8;</a>"
).encode()


def test_a_document() -> None:
    root = parse(
        b'<?xml version="1.0"?><r xmlns="urn:x" xmlns:u="urn:y"> one &amp; two '
        b"<u:child> x </u:child><child>y</child><?php?><!-- c --></r>"
    )
    assert root is not None and (root.name, root.text) == ("r", "one & two")
    assert [(each.name, each.text) for each in root.children] == [("child", "x"), ("child", "y")]
    assert root.value("child") == "x" and root.value("none") == "" and root.find("none") is None
    assert [each.name for each in root.walk()] == ["r", "child", "child"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<a",
        b"<a></b>",
        b"<a/><b/>",
        b"\xff\xfe<",
        b'<!DOCTYPE a SYSTEM "http://203.0.113.9/x"><a/>',
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        b'<!DOCTYPE a [<!ENTITY % x SYSTEM "http://203.0.113.9/x"> %x;]><a/>',
        b"<a>&undeclared;</a>",
        LAUGHS,
        b'<?xml version="1.0" encoding="utf-7"?><a/>',
        b'<?xml version="1.0" encoding="rot13"?><a/>',
        b'<?xml version="1.0" encoding="no-such"?><a/>',
        b"<a>" * (XML_DEPTH + 1) + b"</a>" * (XML_DEPTH + 1),
        b"<a>" + b"<b/>" * XML_ELEMENTS + b"</a>",
    ],
)
def test_what_is_refused(data: bytes) -> None:
    assert parse(data) is None


def test_at_its_bounds_it_is_read() -> None:
    assert parse(b"<a>" * XML_DEPTH + b"</a>" * XML_DEPTH) is not None
    assert parse(b"<a>" + b"<b/>" * (XML_ELEMENTS - 1) + b"</a>") is not None


def test_a_billion_laughs_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin lets declarations pass: the text grows beyond all that was sent."""
    tracemalloc.start()
    assert parse(LAUGHS) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 1024
    few = b'<!DOCTYPE a [<!ENTITY x "' + b"y" * 1000 + b'">]><a>' + b"&x;" * 100 + b"</a>"
    assert parse(few) is None
    from shoal.transport.nat.portmap import xmltree

    monkeypatch.setattr(xmltree._Builder, "refuse", lambda self, *_: 1)
    grown = parse(few)
    assert grown is not None and len(grown.text) == 100_000 > 50 * len(few)


@given(st.binary(max_size=300))
def test_anything_is_read_without_harm(data: bytes) -> None:
    parse(data)
    parse(b"<a>" + data + b"</a>")
