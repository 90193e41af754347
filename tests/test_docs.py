"""Everything that the documents name exists: commands, make targets, links, files."""

import re
import runpy
from functools import cache
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


def test_the_index_of_modules_is_current() -> None:
    """docs/modules.md is written from the docstrings."""
    index = runpy.run_path(str(ROOT / "docs" / "modules.py"))
    assert index["PAGE"].read_text() == index["page"](), "run: python docs/modules.py"


# Decisions and the changelog tell of modules that were.
PRESENT = [path for path in DOCUMENTS if path.parent.name != "adr" and path.name != "CHANGELOG.md"]


@pytest.mark.parametrize("path", PRESENT, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_places_that_a_page_names_exist(path: Path) -> None:
    text, packages = path.read_text(), "|".join(PACKAGES)
    for place in re.findall(rf"`((?:{packages})/(?:[a-z\d_/]*/|[a-z\d_/]+\.\w+)?)`", text):
        assert (ROOT / place).exists(), f"`{place}` is not there"
    for module in re.findall(r"`(?:[\w.]+/)*([a-z]\w*\.py)`", text):
        assert module in modules(), f"there is no module `{module}`"


@cache
def modules() -> frozenset[str]:
    """Return the names of all modules."""
    folders = (*PACKAGES, "tests", "bench", "docs", "examples")
    return frozenset(path.name for name in folders for path in (ROOT / name).rglob("*.py"))


def test_the_drawing_has_each_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = set(re.findall(r"\b([a-z0-9]+)/", page.split("```")[1])) - {"netsim"}
    rooms = {
        folder.name
        for package in ("node", "tasks", "state", "dht", "transport")
        for folder in (ROOT / package).iterdir()
        if (folder / "__init__.py").exists()
    }
    assert drawn - {"daemons", "runs"} == rooms, "the drawing in docs/architecture.md"


def test_the_index_of_decisions_names_each() -> None:
    folder = ROOT / "docs" / "adr"
    found = re.findall(r"^\| \[(\d{4})\]\((\S+)\)", (folder / "README.md").read_text(), re.M)
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for _, name in found] == files
    assert [number for number, _ in found] == [name[:4] for name in files]


@pytest.mark.parametrize(("journey", "most"), [("A stranger", 14), ("A job", 30)])
def test_a_journey_opens_few_files(journey: str, most: int) -> None:
    """A newcomer follows it with the page in hand: it names each file, and says how many they
    are."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    told = page.split(f"**{journey}.**", 1)[1].split("\n\n", 1)[0]
    way, total = re.split(r"\bThat\s+is\s+", told, maxsplit=1)
    files = set(re.findall(r"`([a-z_/]+/(?:[a-z_]+\.py)?)`", way))
    counts = [int(number) for number in re.findall(r"\d+", total.split(". ")[0])]
    assert len(files) in counts and len(files) <= most, sorted(files)
