"""`.ci/tests`, which runs tests that failed once more, alone."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / ".ci" / "tests"
UNSTEADY = """\
from pathlib import Path
def test_late():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
BROKEN = "def test_broken():\n    assert False\n"
FOUR = "".join(f"def test_{n}():\n    assert False\n" for n in range(4))


def outcome(folder: Path, source: str) -> tuple[int, str]:
    """Run a file of tests in an empty project; return the exit code and what was printed."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "test_file.py").write_text("def test_fine(): pass\n" + source)
    command = [sys.executable, str(TESTS), "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout


def test_a_test_that_passes_alone_is_named_and_fails_nothing(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, UNSTEADY)
    assert code == 0, said
    assert "1 failed, 1 passed" in said
    assert said.endswith("passed alone: test_file.py::test_late\n")


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, BROKEN)
    assert code == 1
    assert "once more, alone: test_file.py::test_broken" in said and "unsteady" not in said


def test_more_than_a_few_failures_are_not_run_again(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, FOUR)
    assert code == 1 and "once more" not in said


def test_a_file_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, "import nothing_of_this_name\n")
    assert code == 2 and "once more" not in said
