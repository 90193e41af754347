"""docs/cli.md equals the generated reference."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shoal.cli.errors import EXIT_CODES, EXIT_OF_ERROR
from shoal.cli.main import shoal
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


def _groups(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        yield path
        for name, each in command.commands.items():
            yield from _groups(each, *path, name)


@pytest.mark.parametrize("path", [*_groups(shoal)], ids=lambda path: " ".join(path) or "shoal")
def test_the_list_of_commands_shows_whole_sentences(path: tuple[str, ...]) -> None:
    """On a terminal of 80 columns."""
    shown = CliRunner().invoke(shoal, [*path, "--help"], terminal_width=80).output
    listed = shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert listed and [line for line in listed if line.endswith("...")] == []
