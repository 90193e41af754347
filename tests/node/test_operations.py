"""Values of a request, typed and bounded."""

import pytest

from shoal.node.errors import ControlError
from shoal.node.operations import text_of


def test_bytes_that_are_no_text_are_told_as_that() -> None:
    latin = b"caf\xe9".decode(errors="surrogateescape")  # as Python reads a command line
    with pytest.raises(ControlError, match="`prompt` is not UTF-8 text") as raised:
        text_of({"prompt": latin}, "prompt", 100)
    assert "iconv" in str(raised.value.hint)
    assert text_of({"prompt": "café"}, "prompt", 100) == "café"
