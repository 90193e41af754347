"""Messages about a damaged store are safe to print."""

from pathlib import Path

from shoal.state.errors import StoreDamaged


def test_damaged_bytes_are_not_printed() -> None:
    error = StoreDamaged(Path("/aside"), ValueError("malformed\n \x1b[2J\x00\udcff" + "x" * 999))
    assert error.message.isprintable() and "malformed ?[2J??x" in error.message
    assert len(error.message) < 400
