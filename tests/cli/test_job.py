"""`shoal job`: what it asks and prints."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli import defaults
from shoal.cli.errors import CommandError
from shoal.cli.main import invoke
from shoal.node.defaults import JOBS_AT_ONCE

OWN, OTHER = "12D3KooW" + "a" * 44, "12D3KooW" + "b" * 44
JOB = "ab" * 32
ITEM: dict[str, Any] = {
    "job": JOB, "author": OWN, "kind": "prompt", "state": "claimed", "error": None,
    "message": None, "model": "tiny", "abstract": "On\x1bce", "claimant": OTHER, "attempt": 2,
    "step": 7, "came": None, "read": False,
}  # fmt: skip
FOUND = {
    **ITEM, "state": "done", "came": 1.7e9, "read": False, "tokens": 3, "reason": "stop",
    "text": "so be it\x1b[2J",
}  # fmt: skip
FAILED = {**FOUND, "state": "failed", "error": "bad-spec", "message": "no\x1b prompt", "text": ""}


class Daemon:
    """Stands for the control socket; gives each job a number."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.room = 10**6  # jobs
        self.jobs: list[str] = []

    def request(self, data: Path, op: str, *, wait: bool = False, **more: Any) -> Any:
        self.asked.append({"op": op, **more})
        if op in self.answers:
            answer = self.answers[op]
            if isinstance(answer, Exception):
                raise answer
            return answer(more) if callable(answer) else answer
        if op == "job_submit":
            if len(self.jobs) + len(more["prompts"]) > self.room:
                raise CommandError("jobs-full", "full", hint="wait")
            made = [f"{len(self.jobs) + number:064x}" for number in range(len(more["prompts"]))]
            self.jobs += made
            return {"jobs": made}
        self.room += 1
        return {**FOUND, "job": more["job"], "text": f"text {int(more['job'], 16)}"}


Shoal = Callable[..., SimpleNamespace]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    made = Daemon()
    monkeypatch.setattr("shoal.cli.client.request", made.request)
    monkeypatch.setattr(defaults, "JOBS_FULL_PAUSE", 0.0)
    return made


@pytest.fixture
def shoal(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> Shoal:
    def run(*args: str) -> SimpleNamespace:
        code = invoke(["job", *args])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_one_prompt(daemon: Daemon, shoal: Shoal) -> None:
    done = shoal("submit", "tiny", "Once", "--max-tokens", "9", "--stop", "x", "--seed", "5")
    assert (done.code, done.out) == (0, f"{0:064x}\n")
    (asked,) = daemon.asked
    assert asked["prompts"] == ["Once"] and asked["model"] == "tiny"
    assert (asked["max_tokens"], asked["stop"], asked["seed"]) == (9, ["x"], 5)
    assert json.loads(shoal("submit", "tiny", "Once", "--json").out) == {"jobs": [f"{1:064x}"]}


def test_a_line_each(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("".join(f"é {number}\n\n" for number in range(3 * defaults.JOBS_BATCH)))
    done = shoal("submit", "tiny", "--file", str(path))
    assert len(done.out.splitlines()) == 3 * defaults.JOBS_BATCH
    assert [len(asked["prompts"]) for asked in daemon.asked] == [defaults.JOBS_BATCH] * 3
    assert daemon.asked[0]["prompts"][:2] == ["é 0", "é 1"]
    assert defaults.JOBS_BATCH == JOBS_AT_ONCE


def test_requests_are_bounded_in_bytes(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text(("x" * 60_000 + "\n") * 20)
    shoal("submit", "tiny", "--file", str(path))
    assert sum(len(asked["prompts"]) for asked in daemon.asked) == 20
    assert all(len(json.dumps(asked)) < 2**20 for asked in daemon.asked)


def test_standard_input(daemon: Daemon, shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    for args, prompts in ((["-"], ["a\nb\n"]), (["--file", "-"], ["a", "b"])):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
        assert shoal("submit", "tiny", *args).code == 0
        assert daemon.asked[-1]["prompts"] == prompts


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((), 2),
        (("Once", "--file", "x"), 2),
        (("",), 1),
        ((" \n\t",), 1),
        (("--file", "nowhere"), 1),
        (("Once", "--max-tokens", "5000"), 2),
    ],
)
def test_misused(args: tuple[str, ...], code: int, daemon: Daemon, shoal: Shoal) -> None:
    done = shoal("submit", "tiny", *args)
    assert done.code == code and "error:" in done.err and "hint:" in done.err
    assert not daemon.asked


def test_what_is_no_text(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(b"\xff\n")
    done = shoal("submit", "tiny", "--file", str(path))
    assert done.code == 1 and "not UTF-8" in done.err
    path.write_bytes(b"\n \n")
    assert "there is no prompt" in shoal("submit", "tiny", "--file", str(path)).err


def test_where_there_is_no_room_it_says_how_many(
    daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    path = tmp_path / "prompts"
    path.write_text("x\n" * 100)
    daemon.room = 70
    done = shoal("submit", "tiny", "--file", str(path))
    assert done.code == 1 and "64 of 100 jobs were submitted, those from prompt 65 on" in done.err
    assert len(done.out.splitlines()) == 64


def test_who_waits_goes_on_where_there_is_room_again(
    daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    path = tmp_path / "prompts"
    path.write_text("x\n" * 100)
    daemon.room = 70
    done = shoal("submit", "tiny", "--file", str(path), "--wait", "--json")
    found = json.loads(done.out)["jobs"]
    assert [result["text"] for result in found] == [f"text {number}" for number in range(100)]


def test_waiting_prints_what_comes(daemon: Daemon, shoal: Shoal) -> None:
    done = shoal("submit", "tiny", "Once", "--wait")
    assert (done.code, done.out) == (0, "text 0\n")
    assert done.err == f"{0:064x}\n"
    daemon.answers["job_result"] = FAILED
    done = shoal("submit", "tiny", "Once", "--wait")
    assert done.code == 1 and "failed: bad-spec: no\\x1b prompt" in done.out


def test_the_table(daemon: Daemon, shoal: Shoal) -> None:
    items = [ITEM, {**FOUND, "claimant": OWN, "read": True}, FAILED, {**ITEM, "claimant": None}]
    daemon.answers["job_list"] = {"jobs": items, "more": 5, "own": OWN}
    done = shoal("list", "--mine", "--state", "done")
    assert daemon.asked[-1] == {"op": "job_list", "mine": True, "state": "done"}
    lines = done.out.splitlines()
    assert lines[1].split()[:2] == ["abababababab", "claimed"] and "(attempt 2)" in lines[1]
    assert "On\\x1bce" in lines[1] and "12D3KooWbbbbbb" in lines[1]
    assert "done, read" in lines[2] and "this node" in lines[2]
    assert "failed (bad-spec)" in lines[3]
    assert lines[-1] == "and 5 more"
    assert json.loads(shoal("list", "--json").out)["more"] == 5
    daemon.answers["job_list"] = {"jobs": [], "more": 0, "own": OWN}
    assert "there are no jobs" in shoal("list").out
    for jobs in ([], [ITEM]):
        daemon.answers["job_list"] = {"jobs": jobs, "more": 0, "own": OWN, "kept": False}
        out = shoal("list").out
        assert "does not keep others' jobs" in out and "there are no jobs" not in out
        assert "does not keep" not in shoal("list", "--mine").out


def test_a_job(daemon: Daemon, shoal: Shoal) -> None:
    claims = [
        {"claimant": OTHER, "attempt": 2, "done": False, "step": 7, "refused": False},
        {"claimant": OWN, "attempt": 1, "done": True, "step": 0, "refused": True},
    ]
    daemon.answers["job_show"] = {**ITEM, "spec": None, "claims": claims}
    done = shoal("show", JOB[:8].upper())
    assert daemon.asked[-1]["job"] == JOB[:8]
    assert "attempt 2: at it, step 7" in done.out and "attempt 1: refused" in done.out
    assert "On\\x1bce" in done.out


def test_a_result(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_result"] = FOUND
    done = shoal("result", JOB)
    assert (done.code, done.out) == (0, "so be it\\x1b[2J\n")
    assert daemon.asked[-1] == {"op": "job_result", "job": JOB, "until_done": False}
    shoal("result", JOB, "--wait")
    assert daemon.asked[-1]["until_done"]
    assert json.loads(shoal("result", JOB, "--json").out)["text"] == FOUND["text"]


def test_a_result_that_is_none(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_result"] = FAILED
    done = shoal("result", JOB)
    assert done.code == 1 and "the job failed: bad-spec: no\\x1b prompt" in done.err
    done = shoal("result", JOB, "--json")
    assert done.code == 1 and json.loads(done.out)["error"] == "bad-spec"
    daemon.answers["job_result"] = CommandError("not-done", "no result yet", hint="wait")
    assert shoal("result", JOB).code == 1


def test_ctrl_c_leaves_the_job(daemon: Daemon, shoal: Shoal) -> None:
    def cut_off(_: Any) -> None:
        raise KeyboardInterrupt

    daemon.answers["job_result"] = cut_off
    done = shoal("result", JOB, "--wait")
    assert done.code == 130 and "the job goes on" in done.err
    assert "`shoal job result abababababab --wait" in done.err


def test_ctrl_c_leaves_several_jobs(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    def second_cut_off(asked: Any) -> Any:
        if int(asked["job"], 16):
            raise KeyboardInterrupt
        return {**FOUND, "job": asked["job"]}

    daemon.answers["job_result"] = second_cut_off
    path = tmp_path / "prompts"
    path.write_text("one\ntwo\nthree\n")
    done = shoal("submit", "tiny", "--file", str(path), "--wait")
    assert done.code == 130 and "2 jobs go on" in done.err
    assert "`shoal job list --mine" in done.err


def test_ctrl_c_while_jobs_are_sent(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    """What the daemon made of the request that was under way is not known."""
    path = tmp_path / "prompts"
    path.write_text("x" * 100_000 + "\n" + "y" * 600_000 + "\nlast\n")
    sent = 0

    def second_cut_off(asked: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == 2:
            raise KeyboardInterrupt
        return {"jobs": [JOB]}

    daemon.answers["job_submit"] = second_cut_off
    done = shoal("submit", "tiny", "--file", str(path))
    assert done.code == 130 and "1 of 3 jobs were submitted, and perhaps the next" in done.err
    assert done.out == f"{JOB}\n" and "`shoal job list --mine" in done.err
    sent = 1
    done = shoal("submit", "tiny", "one")
    assert done.code == 130 and "the job may have been submitted" in done.err


def test_taking_one_out(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_cancel"] = {"job": JOB}
    assert shoal("cancel", JOB[:6]).out == f"taken out: {JOB}\n"
    assert json.loads(shoal("cancel", JOB[:6], "--json").out) == {"job": JOB}
