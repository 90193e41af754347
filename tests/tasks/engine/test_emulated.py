"""Native kernels of processors that this machine may not have: AVX-512 and NEON.

`kernels/suite.cpp` checks kernels as test_native.py does, without Python. Everywhere it runs with
the AVX-512 kernels whose instructions are written as loops (`kernels/scalar512.cpp`). QEMU runs the
instructions of ARM themselves. test_native.py tests those of AVX-512 where the processor has them.
"""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.tasks.engine.kernels import library_path

FOLDER = Path(__file__).parent / "kernels"
KERNELS = Path(__file__).parents[3] / "tasks/engine/kernels"
FLAGS = ("-std=c++17", "-fno-math-errno", "-Wno-psabi", "-Wno-maybe-uninitialized", "-pthread")
ARM = "aarch64-linux-gnu-g++"


def compiled(
    folder: Path, sources: Sequence[Path], *options: str, by: str = "g++", headers: Path = KERNELS
) -> Path:
    """Compile a program for the suite, and return its path. The sources are compiled at once.

    Kernels that are not linked are none that `entry.cpp` offers.
    """
    running = []
    for number, source in enumerate(sources):
        command = [by, *FLAGS, f"-I{headers}", *options, "-c", str(source), f"-o{number}.o"]
        running.append(subprocess.Popen(command, cwd=folder))
    assert [each.wait() for each in running] == [0] * len(running)
    objects = [f"{number}.o" for number in range(len(sources))]
    link = [by, "-static", "-pthread", "-Wl,--unresolved-symbols=ignore-all", *objects, "-osuite"]
    subprocess.run(link, cwd=folder, check=True)
    return folder / "suite"


def output(*command: str | Path) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


def needs(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


# ---- everywhere


@pytest.mark.ci
@pytest.mark.skipif(library_path() is None, reason="no compiler built the kernels")
def test_the_suite_passes_the_kernels_of_this_machine(tmp_path: Path) -> None:
    needs("g++")
    library = str(library_path())
    suite = tmp_path / "suite"
    command = ["g++", *FLAGS, "-O1", f"-I{KERNELS}", str(FOLDER / "suite.cpp"), library]
    subprocess.run([*command, f"-o{suite}"], check=True)
    for name, threads in (("best", "2"), ("portable", "1")):
        assert f"\npassed {name if name != 'best' else ''}" in output(suite, name, threads)


def in_loops(folder: Path, name: str, headers: Path = KERNELS) -> str:
    """Compile AVX-512 kernels with loops for their instructions, and return what the suite says."""
    needs("g++")
    if platform.machine() != "x86_64":
        pytest.skip("these kernels are for x86-64")
    # `entry.cpp` asks the processor for its sets of instructions.
    has = '-D__builtin_cpu_supports(set)=(BF16_DOTS||strcmp(set,"avx512bf16"))'
    options = ["-O1", "-march=native", f"-DBF16_DOTS={int(name == 'avx512bf16')}", has]
    sources = [FOLDER / "suite.cpp", FOLDER / "scalar512.cpp"]
    sources += [KERNELS / "entry.cpp", KERNELS / "pool.cpp"]
    return output(compiled(folder, sources, *options, headers=headers), name, "1")


@pytest.mark.ci
@pytest.mark.parametrize("name", ["avx512", "avx512bf16"])
def test_avx512_kernels_in_loops(name: str, tmp_path: Path) -> None:
    said = in_loops(tmp_path, name)
    assert said.endswith(f"\npassed {name}\n"), said


MISTAKES = {
    "the sign of bytes": ("avx512.h", "SUMS_BY = -128", "SUMS_BY = 0", "int8"),
    "one row apart": (
        "dots.h",
        "splat(by[m]), sum));",
        "splat(by[m]), sum) * splat(M == 1 ? 1.0000002f : 1.0f));",
        "depends on other rows",
    ),
    "whole panels": (
        "products.h", "+ at, from, width * 4)", "+ at, from, PANEL * 4)", "products of float32",
    ),
    "the window": ("attention.h", "key > at - tile->window", "key >= at - tile->window", "window"),
    "the future": ("attention.h", "(key <= at &&", "(key <= at + 1 &&", "attention"),
    "a position": ("steps.h", "position % BLOCK;", "position % BLOCK ^ 1;", "steps in float32"),
}  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_suite_finds_mistakes(mistake: str, tmp_path: Path) -> None:
    file, right, wrong, said = MISTAKES[mistake]
    for header in KERNELS.glob("*.h"):
        shutil.copyfile(header, tmp_path / header.name)
    text = (tmp_path / file).read_text()
    assert text.count(right) == 1
    (tmp_path / file).write_text(text.replace(right, wrong))
    lines = in_loops(tmp_path, "avx512", tmp_path).splitlines()
    assert lines[-1] == "failed avx512"
    assert any(line.startswith("FAIL") and said in line for line in lines)


# ---- in emulators


@pytest.mark.ci
def test_neon_kernels_on_arm(tmp_path: Path) -> None:
    needs(ARM, "qemu-aarch64")
    sources = [FOLDER / "suite.cpp", *sorted(KERNELS.glob("*.cpp"))]
    suite = compiled(tmp_path, sources, "-O3", by=ARM)
    for processor, name, best in (("max", "best", "neondot"), ("cortex-a72", "best", "neon")):
        said = output("qemu-aarch64", "-cpu", processor, suite, name, "2")
        assert said.endswith(f"\npassed {best}\n"), said
    said = output("qemu-aarch64", "-cpu", "cortex-a72", suite, "neondot", "1")
    assert "no `neondot` instructions" in said
