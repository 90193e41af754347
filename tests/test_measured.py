"""Records are of full runs, the page is generated from them, and the README claims nothing else."""

import ast
import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import records
from bench.records import ROOT, Record
from bench.yardstick import Yardstick

SCRIPTS = records.scripts()
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_names_what_it_measures(script: Path) -> None:
    """A script that omits a package that it imports would not become stale when that package
    changes.
    """
    named = records.measures(script)
    for name in named:
        assert (ROOT / name).exists(), f"`{script.name}` measures `{name}`, which does not exist"
    for path in records.local_modules(script) | {ROOT / name for name in named if "bench" in name}:
        for module in imported(ast.parse(path.read_text())):
            files = {f"{module}.py", f"{module.rpartition('/')[0]}.py"}
            above = {parent.as_posix() for parent in Path(module).parents}
            assert {*files, module, *above} & {*named}, f"`{path.name}` imports {module}"


def imported(tree: ast.Module) -> set[str]:
    """Return the paths of our modules that it imports, without extensions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal."):
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name.startswith("shoal.")}
    return {name.removeprefix("shoal.").replace(".", "/") for name in found}


def test_every_record_is_of_a_full_run() -> None:
    stored = {path.stem for path in (ROOT / "bench" / "results").glob("*.json")}
    assert {each.name for each in records.load()} == stored, "not a valid record: remove it"


def test_the_page_is_made_of_the_records() -> None:
    """Stale marks change with every commit, so the page may be behind in these."""
    text = (ROOT / "docs" / "measured.md").read_text()
    found = records.page(records.load(), records.stale_on(text))
    assert text == found, "run: python bench/run_all.py --page"


def test_the_readme_claims_what_is_recorded() -> None:
    lacking = records.unfounded(README, records.load())
    assert not lacking, (
        f"the README rests on {lacking}, of which no full run reached its goal: move the row to "
        "what is promised, or record a run with `bench/run_all.py --only`"
    )


# Each of these checks can fail.


def record(**changes: Any) -> Record:
    whole = Record(
        name="first",
        commit="0" * 40,
        date="2026-11-24T10:00:00+00:00",
        duration_s=12.0,
        arguments=[],
        seeds=5,
        machine={"cpu": "x", "cores": 2, "kernel": "Linux", "python": "3.11"},
        measures=["pond"],
        digest="",
        result={"name": "first", "value": 1.5, "goal": 1, "ok": True},
    )
    return dataclasses.replace(whole, **changes)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Create a repository with one package and one script."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "pond").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "pond" / "fish.py").write_text("SIZE = 1\n")
    (tmp_path / "bench" / "tools.py").write_text("TWO = 2\n")
    (tmp_path / "bench" / "first.py").write_text(
        "from tools import TWO\n\nMEASURES = ('pond',)\nparser.add_argument('--seeds', default=5)\n"
    )
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"arguments": ["--quick"]}, "`--quick` changes"),
        ({"arguments": ["--seeds", "4"]}, "`--seeds` changes"),
        ({"arguments": ["-j", "2", "--only", "x"]}, "`--only` changes"),
        ({"seeds": 4}, "fewer than the script's own 5"),
        ({"seeds": {"dead": 4, "healthy": 3}}, "fewer than the script's own 5"),
        ({"seeds": None}, "fewer than the script's own 5"),
        ({"commit": "main"}, "no commit"),
        ({"result": {"ok": True, "skipped": "no root"}}, "skipped: no root"),
    ],
)
def test_a_shortened_run_is_not_recorded(changes: dict[str, Any], why: str, tree: Path) -> None:
    with pytest.raises(ValueError, match=why):
        records.store(record(**changes), tree)
    assert not records.load(tree)


def test_a_full_run_is_recorded(tree: Path) -> None:
    whole = record(arguments=["-j", "2", "--out", "file"])
    records.store(whole, tree)
    assert records.load(tree) == [whole]


def test_a_result_without_a_stamp_is_no_record(tree: Path) -> None:
    records.store(record(), tree)
    (tree / "bench" / "results" / "first.json").write_text('{"name": "first", "ok": true}')
    assert not records.load(tree)


def test_a_changed_tree_is_not_recorded(tree: Path) -> None:
    assert len(records.commit(tree)) == 40
    records.store(record(), tree)
    (tree / "docs" / "measured.md").write_text("")
    assert len(records.commit(tree)) == 40, "the files of a record are no change"
    (tree / "pond" / "new.py").write_text("")
    with pytest.raises(ValueError, match=r"pond/new.py"):
        records.commit(tree)
    shutil.rmtree(tree / ".git")
    with pytest.raises(ValueError, match="no git history"):
        records.commit(tree)


@pytest.mark.parametrize("path", ["pond/fish.py", "pond/new/table.csv", "bench/tools.py"])
def test_a_change_of_what_is_measured_makes_a_record_stale(path: str, tree: Path) -> None:
    fresh = record(digest=records.digest(tree / "bench" / "first.py", tree))
    assert not records.stale([fresh], tree)
    (tree / "README.md").write_text("another")
    (tree / "pond" / "__pycache__").mkdir()
    (tree / "pond" / "__pycache__" / "fish.pyc").write_text("another")
    (tree / "pond" / "built.abi3.so").write_text("another")
    assert not records.stale([fresh], tree)
    (tree / path).parent.mkdir(exist_ok=True)
    (tree / path).write_text("SIZE = 2\n")
    assert records.stale([fresh], tree) == {"first"}


def test_words_and_the_layout_of_lines_make_no_record_stale(tree: Path) -> None:
    path = tree / "pond" / "fish.py"
    path.write_text("SIZE = max(1, 2)\n")
    fresh = record(digest=records.digest(tree / "bench" / "first.py", tree))
    path.write_text(
        '"""Fish."""\n\nSIZE = max(  # centimetres\n    1,\n    2,\n)\n"""The length."""\n'
    )
    assert not records.stale([fresh], tree)
    path.write_text("SIZE = max(1, 3)\n")
    assert records.stale([fresh], tree) == {"first"}


def test_a_stale_figure_is_shown_as_stale() -> None:
    text = records.page([record()], {"first"})
    assert "| stale |" in text and records.stale_on(text) == {"first"}
    assert not records.stale_on(records.page([record()], ()))


def test_a_claim_without_a_run_that_reached_its_mark_is_found() -> None:
    readme = (
        "# x\n\n## What holds\n\n| a | `bench/first.py` |\n\n### Promised\n\n`bench/second.py`\n"
    )
    assert records.unfounded(readme, []) == {"first"}
    assert records.unfounded(readme, [record(result={"ok": False})]) == {"first"}
    assert not records.unfounded(readme, [record()])


def test_a_machine_twice_as_slow_measures_the_same_reference_ms() -> None:
    def measured(slowness: float, *, length: int = 1) -> tuple[float, float]:
        ticks = iter(range(10_000))
        stick = Yardstick(lambda: next(ticks) * slowness, length=length)
        stick.sample(9)
        own_ms = 5_000 * slowness
        return stick.reference_ms(own_ms), stick.reference_tail_ms(own_ms, 0.99)

    assert measured(0.002) == pytest.approx((5.0, 5.0))
    assert measured(0.001) == pytest.approx((5.0, 5.0))
    assert measured(0.001, length=5) == pytest.approx((25.0, 25.0))
