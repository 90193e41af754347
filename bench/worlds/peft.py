"""An environment with `peft` and torch for benches, made once below the cache folder."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGES: Final = ("torch==2.13.0", "transformers==5.23.0", "peft==0.21.2")
PROGRAM: Final = "SHOAL_BENCH_PEFT"
"""Variable that names another Python that has these."""


def python(named: str | None = None) -> Path:
    """Return a Python that has `peft`: the one that is named, or one that is made here."""
    if named := named or os.environ.get(PROGRAM):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "shoal-bench" / "peft"
    made = folder / "made"  # written last, so that an interrupted attempt is repeated
    if not made.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *PACKAGES]
        subprocess.run(command, check=True, stdout=sys.stderr)
        made.write_text("\n".join(PACKAGES))
    return folder / "bin" / "python"
