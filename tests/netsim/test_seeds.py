"""A long measurement resumes where it stopped, and does not mix with another."""

import json
from pathlib import Path

import pytest

from shoal.netsim.errors import SimError
from shoal.netsim.seeds import Figures, measure


class Work:
    """Counts its calls; stops at a seed."""

    def __init__(self, stop: int = -1) -> None:
        self.done: list[int] = []
        self.stop = stop

    def __call__(self, seed: int) -> Figures:
        if seed == self.stop:
            raise KeyboardInterrupt
        self.done.append(seed)
        return {"value": seed / 3}


def test_it_resumes_after_a_stop(tmp_path: Path) -> None:
    path, first, second = tmp_path / "out.jsonl", Work(stop=3), Work()
    with pytest.raises(KeyboardInterrupt):
        measure(first, range(6), settings={"hosts": 10}, path=path)
    said: list[str] = []
    found = measure(second, range(6), settings={"hosts": 10}, path=path, say=said.append)
    assert (first.done, second.done) == ([0, 1, 2], [3, 4, 5])
    assert found == [{"value": seed / 3} for seed in range(6)]
    assert said[2] == "seed 2 (3 of 6, known): value 0.6667"
    assert said[3] == "seed 3 (4 of 6): value 1"
    assert len(path.read_text().splitlines()) == 6


def test_a_line_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    measure(Work(), range(3), settings={}, path=path)
    path.write_bytes(path.read_bytes()[:-5])
    work = Work()
    measure(work, range(3), settings={}, path=path)
    assert work.done == [2]
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_other_settings_are_another_measurement(tmp_path: Path) -> None:
    path, work = tmp_path / "out.jsonl", Work()
    for hosts in (10, 20, 10):
        measure(work, range(2), settings={"hosts": hosts}, path=path)
    assert work.done == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("text", "where"), [("dear diary\n", "line 1"), ("dear diary", "its last")]
)
def test_another_kind_of_file_is_not_changed(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(SimError, match=f"notes.txt: {where}"):
        measure(Work(), range(2), settings={}, path=path)
    assert path.read_text() == text


def test_without_a_file_nothing_is_kept() -> None:
    work = Work()
    assert len(measure(work, [1, 1, 2], settings={})) == 2
    assert work.done == [1, 2]
