"""Typed and bounded values of a request."""

from typing import Any

import pytest

from shoal.node.control.messages.encoding import decode
from shoal.node.control.messages.generation import Run
from shoal.node.errors import ControlError


def asked(prompt: str) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt}


def test_bytes_that_are_not_utf8_are_refused() -> None:
    latin = b"caf\xe9".decode(errors="surrogateescape")  # as Python reads a command line
    with pytest.raises(ControlError, match="`prompt` is not UTF-8 text") as raised:
        decode(Run, asked(latin))
    assert "iconv" in str(raised.value.hint)
    assert decode(Run, asked("café")).prompt == "café"
