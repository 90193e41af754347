"""The memory of a shard is predicted before it is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "measure_shard.py"


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_a_shard_takes_what_was_predicted(precision: str, tmp_path: Path) -> None:
    """1.1 B parameters: within 5 % in each precision."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), precision, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    predicted, used = map(int, done.stdout.split())
    assert abs(used - predicted) <= 0.05 * predicted, (predicted, used)
