"""What `pip install` makes of the package: with a compiler and without one."""

import json
import os
import platform
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shoal.tasks.engine.compute.native import choice

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
HOW = ("--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir", "--quiet")
LACKING = "the installation has no kernels: it found no C++ compiler"
pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source package, of which nothing is built yet."""
    folder = tmp_path_factory.mktemp("source")
    build = [sys.executable, "-m", "build", "--quiet", "--sdist", "--no-isolation"]
    subprocess.run([*build, "--outdir", str(folder), str(ROOT)], check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is made of the source package where a compiler is."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [*PIP, "wheel", *HOW, "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


def installed(package: Path, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Install a package into a folder, and return what `installed_text.py` prints with it."""
    command = [*PIP, "install", *HOW, "--target", str(folder), str(package)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    script = [sys.executable, str(ROOT / "tests" / "installed_text.py")]
    around = {**os.environ, "PYTHONPATH": str(folder)}
    around.pop("SHOAL_KERNELS", None)
    done = subprocess.run(script, capture_output=True, text=True, env=around, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert Path(found["shoal"]).is_relative_to(folder), "another installation answered"
    return found


def compilers() -> bool:
    found = sysconfig.get_config_var("CXX")
    return bool(found) and platform.machine() in choice.SETS


@pytest.mark.skipif(not compilers(), reason="no compiler for kernels of this architecture")
def test_a_wheel_has_kernels_that_load_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """One wheel serves all versions of Python, and is installed where no compiler is."""
    _, _, python, abi, place = wheel.stem.split("-")
    assert (python, abi) == ("cp311", "abi3") and place != "any"
    with zipfile.ZipFile(wheel) as files:
        (library,) = (name for name in files.namelist() if "_native" in name)
        assert files.getinfo(library).file_size < 1 << 20, "it has no debugging information"
    found = installed(wheel, tmp_path / "site", without_compilers(tmp_path))
    assert found["library"] == str(tmp_path / "site" / library)
    assert found["kernels"] == choice.SETS[platform.machine()][0] or found["refused"]
    assert found["kernels"] is not None


@pytest.mark.parametrize("how", ["no compiler in PATH", "compilers that fail"])
def test_an_installation_without_a_compiler_writes_the_same_text(
    how: str, source: Path, wheel: Path, tmp_path: Path
) -> None:
    """It costs speed only."""
    lacking = without_compilers(tmp_path) if how == "no compiler in PATH" else FAILING
    slow = installed(source, tmp_path / "slow", lacking)
    assert (slow["library"], slow["kernels"], slow["refused"]) == (None, None, [LACKING])
    fast = installed(wheel, tmp_path / "fast", {})
    assert fast["library"] is not None
    assert slow["tokens"] == fast["tokens"] and len(set(slow["tokens"])) > 8


FAILING = {"CC": "false", "CXX": "false"}


def without_compilers(folder: Path) -> dict[str, str]:
    """A PATH with nothing in it."""
    (folder / "nothing").mkdir()
    return {"PATH": str(folder / "nothing")}
