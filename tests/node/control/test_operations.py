"""Typed and bounded values of a request."""

import pytest

from shoal.node.control.operations import text_of
from shoal.node.errors import ControlError


def test_bytes_that_are_not_utf8_are_refused() -> None:
    latin = b"caf\xe9".decode(errors="surrogateescape")  # as Python reads a command line
    with pytest.raises(ControlError, match="`prompt` is not UTF-8 text") as raised:
        text_of({"prompt": latin}, "prompt", 100)
    assert "iconv" in str(raised.value.hint)
    assert text_of({"prompt": "café"}, "prompt", 100) == "café"
