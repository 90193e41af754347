"""Environments with the programs of others: two benches that need the same one make it once."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench"
SCRIPT = """
import sys, time
from pathlib import Path
from worlds import others

def make(name, folder):
    folder.mkdir()  # fails if another process makes it as well
    time.sleep(0.5)

others.make = make
print(others.python("peft", None))
"""


def test_an_environment_that_two_need_at_once_is_made_once(tmp_path: Path) -> None:
    settings = {"PYTHONPATH": str(BENCH), "XDG_CACHE_HOME": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=settings, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for each in both:
        said, _ = each.communicate(timeout=60)
        assert each.returncode == 0
        assert said.decode().strip() == str(tmp_path / "shoal-bench" / "peft" / "bin" / "python")
