"""Everything that the documents name exists: commands, make targets, links, files."""

import importlib.util
import re
from pathlib import Path

import click
import pytest

from shoal.cli.main import shoal

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "tiny" / "README.md",
]
PACKAGES = ("transport", "state", "dht", "tasks", "node", "cli", "netsim")
EVERYWHERE = {"__init__", "errors", "defaults"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"`{target}` is not there"


def test_commands_of_the_readme_exist() -> None:
    lines = re.findall(r"(?:^|\$ |`)shoal ([^`\n#]+)", README, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        command: click.Command = shoal
        words = [word for word in line.split() if not word.startswith('"')]
        while words and words[0][0] != "-" and isinstance(command, click.Group):
            assert words[0] in command.commands, f"`shoal {line}`"
            command = command.commands[words.pop(0)]
        options = {"--help"}.union(*(parameter.opts for parameter in command.params))
        assert {word for word in words if word.startswith("--")} <= options, f"`shoal {line}`"


def test_targets_of_the_readme_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M)) <= {*targets}


def test_evidence_of_the_readme_exists() -> None:
    """Each claim and each promise of the tables names a script or tests."""
    for head in ("| shown by |", "| measured by |"):
        for line in README.split(head)[1].split("\n\n")[0].splitlines()[2:]:
            for name in re.findall(r"`([^`]+)`", line.split("|")[2]):
                assert (ROOT / name).exists(), name


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_names_every_file(package: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split(f"\n## {package}\n")[1].split("\n## ")[0]
    files = {path.stem for path in (ROOT / package).rglob("*.py")} - EVERYWHERE
    named = {name.split("/")[-1] for name in re.findall(r"`([a-z0-9_/]+)\.py`", section)}
    named |= set(re.findall(r"`(\w+)`", section)) & files
    assert files <= named, f"docs/architecture.md does not describe {files - named}"
    everything = {path.stem for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert named <= everything, f"docs/architecture.md names {named - everything}"


def test_an_output_in_a_document_is_written_from_a_run() -> None:
    spec = importlib.util.spec_from_file_location("outputs", ROOT / "docs" / "outputs.py")
    assert spec is not None and spec.loader is not None
    outputs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(outputs)
    head = "before\n<!-- output of `shoal x --y`, lines `^a|^b` -->\n```\n"
    asked: list[str] = []

    def run(command: str) -> str:
        asked.append(command)
        return "a: real 9 s\nleft out\nso it is\nb 2\n\nleft out too\n"

    text = outputs.rewritten(f"{head}a 1\n```\nafter\n", run)
    assert text == f"{head}a: real 9 s\n…\nb 2\n```\nafter\n"
    assert asked == ["x --y"]
    assert outputs.settled("a: real 9 s, 2 times\nb 2") == "a: real\nb 2"
