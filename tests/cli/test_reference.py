"""docs/cli.md equals the generated reference."""

from pathlib import Path

from shoal.cli.errors import EXIT_CODES, EXIT_OF_ERROR
from shoal.cli.reference import reference

DOC = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
SPEC = DOC.parent / "spec" / "control.md"


def test_the_reference_is_up_to_date() -> None:
    assert DOC.read_text() == reference(), "run: python -m shoal.cli.reference > docs/cli.md"


def test_every_exit_code_is_listed() -> None:
    text = DOC.read_text()
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in text
    assert set(EXIT_OF_ERROR.values()) <= set(EXIT_CODES)
