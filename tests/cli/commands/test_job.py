"""`shoal job`: its requests and its output."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli import defaults, jobresults
from shoal.cli.errors import CommandError
from shoal.cli.main import invoke
from shoal.node.defaults import JOBS_AT_ONCE

OWN, OTHER = "12D3KooW" + "a" * 44, "12D3KooW" + "b" * 44
JOB = "ab" * 32
ITEM: dict[str, Any] = {
    "job": JOB, "author": OWN, "kind": "prompt", "state": "claimed", "error": None,
    "message": None, "model": "tiny", "abstract": "On\x1bce", "claimant": OTHER, "attempt": 2,
    "step": 7, "came": None, "read": False, "made": None,
}  # fmt: skip
FOUND = {
    **ITEM, "state": "done", "came": 1.7e9, "read": False, "tokens": 3, "reason": "stop",
    "text": "so be it\x1b[2J",
}  # fmt: skip
FAILED = {**FOUND, "state": "failed", "error": "bad-spec", "message": "no\x1b prompt", "text": ""}


class Daemon:
    """Replaces the control socket; gives each job a number."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.room = 10**6  # jobs
        self.jobs: list[str] = []
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.ends: list[Exception] = []

    def converse(
        self, op: str, on_event: Callable[[dict[str, Any]], None], more: dict[str, Any]
    ) -> Any:
        self.asked.append({"op": op, **more})
        if op == "job_results":
            return self.results(on_event, more["jobs"] or self.jobs)
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
            return {"jobs": made, "model": "tiny", "root": "cd" * 32}
        return self.result(more["job"])

    def result(self, job: str) -> dict[str, Any]:
        said = {**FOUND, "job": job, "text": f"text {int(job, 16)}", "prompt": "On\x1bce"}
        return {**said, "node": OTHER, **self.outcomes.get(job, {})}

    def results(self, on_event: Callable[[dict[str, Any]], None], jobs: list[str]) -> Any:
        """Emit the last job first, so that the command has to sort."""
        if self.ends and len(self.asked) > 1:
            raise self.ends.pop()
        on_event({"event": "jobs", "jobs": jobs})
        for job in reversed(jobs):
            if job in self.answers:
                raise self.answers.pop(job)
            self.room += 1
            on_event({"event": "result", "result": self.result(job)})
            on_event({"event": "progress", "done": 1, "failed": 0})
        return {"jobs": len(jobs), "failed": 0}


Shoal = Callable[..., SimpleNamespace]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, replaced: Any) -> Daemon:
    made = Daemon()
    replaced(made.converse)
    monkeypatch.setattr(defaults, "JOBS_FULL_PAUSE", 0.0)
    return made


@pytest.fixture
def shoal(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> Shoal:
    def run(*args: str) -> SimpleNamespace:
        code = invoke(["job", *args])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_submit_one_prompt(daemon: Daemon, shoal: Shoal) -> None:
    done = shoal("submit", "tiny", "Once", "--max-tokens", "9", "--stop", "x", "--seed", "5")
    assert (done.code, done.out) == (0, f"{0:064x}\n")
    (asked,) = daemon.asked
    assert asked["prompts"] == ["Once"] and asked["model"] == "tiny"
    assert (asked["max_tokens"], asked["stop"], asked["seed"]) == (9, ["x"], 5)
    assert json.loads(shoal("submit", "tiny", "Once", "--json").out) == {"jobs": [f"{1:064x}"]}


def test_submit_one_job_for_each_line(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
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
def test_wrong_arguments(args: tuple[str, ...], code: int, daemon: Daemon, shoal: Shoal) -> None:
    done = shoal("submit", "tiny", *args)
    assert done.code == code and "error:" in done.err and "hint:" in done.err
    assert not daemon.asked


def test_file_that_is_not_text(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(b"\xff\n")
    done = shoal("submit", "tiny", "--file", str(path))
    assert done.code == 1 and "not UTF-8" in done.err
    path.write_bytes(b"\n \n")
    assert "the prompt is empty" in shoal("submit", "tiny", "--file", str(path)).err


def test_full_feed_reports_how_many_jobs_were_submitted(
    daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    path = tmp_path / "prompts"
    path.write_text("x\n" * 100)
    daemon.room = 70
    done = shoal("submit", "tiny", "--file", str(path))
    assert done.code == 1
    assert "64 of 100 jobs were submitted, but not those from prompt 65 on" in done.err
    assert len(done.out.splitlines()) == 64


def test_submit_with_wait_continues_when_jobs_end(
    daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    path = tmp_path / "prompts"
    path.write_text("x\n" * 100)
    daemon.room = 70
    done = shoal("submit", "tiny", "--file", str(path), "--wait", "--json")
    found = json.loads(done.out)["jobs"]
    assert [result["text"] for result in found] == [f"text {number}" for number in range(100)]


def test_wait_prints_results(daemon: Daemon, shoal: Shoal) -> None:
    done = shoal("submit", "tiny", "Once", "--wait")
    assert (done.code, done.out) == (0, "text 0\n")
    assert done.err == f"{0:064x}\n"
    daemon.outcomes[f"{1:064x}"] = FAILED | {"job": f"{1:064x}"}
    done = shoal("submit", "tiny", "Once", "--wait")
    assert done.code == 1 and "failed: bad-spec: no\\x1b prompt" in done.out


def test_list(daemon: Daemon, shoal: Shoal) -> None:
    items = [ITEM, {**FOUND, "claimant": OWN, "read": True}, FAILED, {**ITEM, "claimant": None}]
    totals = {"open": 1, "claimed": 1, "done": 1, "failed": 1006}
    daemon.answers["job_list"] = {"jobs": items, "more": 5, "own": OWN, "totals": totals,
                                  "does_jobs": False}  # fmt: skip
    done = shoal("list", "--mine", "--state", "done", "--offset", "7")
    assert daemon.asked[-1] == {
        "op": "job_list", "mine": True, "state": "done", "limit": 50, "offset": 7,
    }  # fmt: skip
    lines = done.out.splitlines()
    assert lines[1].split()[:2] == ["abababababab", "claimed"] and "(attempt 2)" in lines[1]
    assert "On\\x1bce" in lines[1] and "12D3KooWbbbbbb" in lines[1]
    assert "done, read" in lines[2] and "this node" in lines[2]
    assert "failed (bad-spec)" in lines[3]
    assert lines[5:] == [
        "1009 jobs: 1 open, 1 claimed, 1 done, 1006 failed",
        "and 5 more: add `--offset 11`, or `--limit N`",
    ]
    assert json.loads(shoal("list", "--json").out)["more"] == 5
    assert daemon.asked[-1]["limit"] == 1000
    empty = dict.fromkeys(totals, 0)
    daemon.answers["job_list"] = {"jobs": [], "more": 0, "own": OWN, "totals": empty,
                                  "does_jobs": False}  # fmt: skip
    assert "there are no jobs" in shoal("list").out
    for jobs in ([], [ITEM]):
        daemon.answers["job_list"] = {
            "jobs": jobs, "more": 0, "own": OWN, "kept": False, "does_jobs": False,
            "totals": empty | {"open": len(jobs)},
        }  # fmt: skip
        out = shoal("list").out
        assert "does not store other nodes' jobs" in out and "there are no jobs" not in out
        assert "does not store" not in shoal("list", "--mine").out


def test_show(daemon: Daemon, shoal: Shoal) -> None:
    claims = [
        {"claimant": OTHER, "attempt": 2, "done": False, "step": 7, "refused": False},
        {"claimant": OWN, "attempt": 1, "done": True, "step": 0, "refused": True},
    ]
    daemon.answers["job_show"] = {**ITEM, "spec": None, "claims": claims}
    done = shoal("show", JOB[:8].upper())
    assert daemon.asked[-1]["job"] == JOB[:8]
    assert "attempt 2: in progress, step 7" in done.out and "attempt 1: refused" in done.out
    assert "On\\x1bce" in done.out


def test_result(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_result"] = FOUND
    done = shoal("result", JOB)
    assert (done.code, done.out) == (0, "so be it\\x1b[2J\n")
    assert daemon.asked[-1] == {"op": "job_result", "job": JOB, "until_done": False}
    daemon.answers["job_show"] = {**ITEM, "spec": None, "claims": []}
    assert shoal("result", JOB[:9], "--wait").out == done.out
    (waited,) = (asked for asked in daemon.asked if asked["op"] == "job_results")
    assert waited == {"op": "job_results", "jobs": [JOB], "until_done": True}
    assert json.loads(shoal("result", JOB, "--json").out)["text"] == FOUND["text"]


def test_failed_or_missing_result(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_result"] = FAILED
    done = shoal("result", JOB)
    assert done.code == 1 and "the job failed: bad-spec: no\\x1b prompt" in done.err
    done = shoal("result", JOB, "--json")
    assert done.code == 1 and json.loads(done.out)["error"] == "bad-spec"
    daemon.answers["job_result"] = CommandError("not-done", "no result yet", hint="wait")
    assert shoal("result", JOB).code == 1


def test_ctrl_c_does_not_cancel_the_job(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers |= {"job_show": {**ITEM, "spec": None, "claims": []}, JOB: KeyboardInterrupt()}
    done = shoal("result", JOB, "--wait")
    assert done.code == 130 and "the job continues" in done.err
    assert "`shoal job result abababababab --wait" in done.err


def test_ctrl_c_does_not_cancel_several_jobs(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    daemon.answers[f"{0:064x}"] = KeyboardInterrupt()
    path = tmp_path / "prompts"
    path.write_text("one\ntwo\nthree\n")
    done = shoal("submit", "tiny", "--file", str(path), "--wait")
    assert done.code == 130 and "3 jobs continue" in done.err
    assert "`shoal job list --mine" in done.err


def test_ctrl_c_while_jobs_are_sent(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    """Whether the interrupted request submitted a job is unknown."""
    path = tmp_path / "prompts"
    path.write_text("x" * 100_000 + "\n" + "y" * 600_000 + "\nlast\n")
    sent = 0

    def second_cut_off(asked: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == 2:
            raise KeyboardInterrupt
        return {"jobs": [JOB], "model": "tiny", "root": "cd" * 32}

    daemon.answers["job_submit"] = second_cut_off
    done = shoal("submit", "tiny", "--file", str(path))
    assert done.code == 130 and "1 of 3 jobs were submitted, and perhaps the next" in done.err
    assert done.out == f"{JOB}\n" and "`shoal job list --mine" in done.err
    sent = 1
    done = shoal("submit", "tiny", "one")
    assert done.code == 130 and "the job may have been submitted" in done.err


def test_cancel_one_job(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_cancel"] = {"job": JOB}
    assert shoal("cancel", JOB[:6]).out == f"cancelled: {JOB}\n"
    assert json.loads(shoal("cancel", JOB[:6], "--json").out) == {"job": JOB}


def test_cancel_all_jobs(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_cancel"] = {"jobs": [JOB, "cd" * 32], "results": 3}
    assert shoal("cancel", "--all").out == "cancelled: 2 jobs; 3 results kept\n"
    assert daemon.asked[-1] == {"op": "job_cancel", "all": True}
    for args in ((), (JOB, "--all")):
        done = shoal("cancel", *args)
        assert done.code == 2 and "give either an ID or --all" in done.err


def test_results_are_written_to_a_file_in_order(
    daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    ids = [f"{number:064x}" for number in (2, 0, 1)]
    batch, output = tmp_path / "ids.txt", tmp_path / "results.jsonl"
    batch.write_text("\n".join(ids) + "\n")
    output.write_text("before")
    done = shoal("result", "--file", str(batch), "-o", str(output), "--wait")
    assert (done.code, done.out) == (0, f"wrote 3 lines to {output}\n")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["id"] for line in lines] == ids
    assert lines[0] == {
        "id": ids[0], "prompt": "On\x1bce", "text": "text 2", "node": OTHER, "error": None,
        "message": None,
    }  # fmt: skip
    assert list(tmp_path.glob("*.part")) == []
    daemon.outcomes[ids[1]] = {"error": "bad-spec", "message": "the prompt is empty", "text": ""}
    done = shoal("result", "--file", str(batch))
    assert done.code == 1 and "1 of 3 jobs failed" in done.err
    assert json.loads(done.out.splitlines()[1]) == {
        "id": ids[1], "prompt": "On\x1bce", "text": None, "node": OTHER, "error": "bad-spec",
        "message": "the prompt is empty",
    }  # fmt: skip
    daemon.outcomes[ids[2]] = {"error": "not-done", "message": "no", "text": "", "node": None}
    done = shoal("result", "--file", str(batch), "--json", "-o", str(output))
    assert done.code == 1 and "1 of 3 jobs have no result, 1 failed" in done.err
    assert json.loads(done.out)["lacking"] == 1


def test_ctrl_c_keeps_the_written_results(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    ids = [f"{number:064x}" for number in range(3)]
    batch, output = tmp_path / "ids.txt", tmp_path / "results.jsonl"
    batch.write_text("\n".join(ids))
    output.write_text("before")
    daemon.answers[ids[1]] = KeyboardInterrupt()
    done = shoal("result", "--file", str(batch), "-o", str(output), "--wait")
    part = tmp_path / "results.jsonl.part"
    assert done.code == 130 and f"1 of 3 results were written to `{part}`" in done.err
    assert json.loads(part.read_text())["id"] == ids[2] and output.read_text() == "before"
    daemon.answers[ids[2]] = KeyboardInterrupt()
    shoal("result", "--file", str(batch), "-o", str(output), "--wait")
    assert not part.exists()


@pytest.mark.parametrize("text", ["", "\n \n", "3fa9\n", "x" * 64])
def test_file_without_ids(text: str, daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text(text)
    done = shoal("result", "--file", str(tmp_path / "ids"))
    assert done.code == 1 and "hint:" in done.err and not daemon.asked


@pytest.mark.parametrize("args", [(), (JOB, "--all"), ("--all", "--file", "x"), (JOB, "-o", "x")])
def test_result_needs_exactly_one_selection(
    args: tuple[str, ...], daemon: Daemon, shoal: Shoal
) -> None:
    assert shoal("result", *args).code == 2 and not daemon.asked


def test_progress_counts_failures() -> None:
    assert jobresults.progress(412, 1000, 3) == "412 of 1000 results, 3 failed"
    assert jobresults.progress(0, 1, 0) == "0 of 1 result"


def test_waiting_survives_a_restart_of_the_daemon(
    daemon: Daemon, shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.jobs = [f"{number:064x}" for number in range(3)]
    daemon.answers[daemon.jobs[1]] = CommandError("not-running", "the daemon stopped")
    ends: list[Exception] = [
        CommandError(code, "it stopped") for code in ("stopping", "not-running")
    ]
    daemon.ends = ends
    monkeypatch.setattr(defaults, "JOBS_RESTART_LOOK", 0.0)
    done = shoal("result", "--all", "--wait")
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == daemon.jobs
    assert [asked["jobs"] for asked in daemon.asked] == [None, *[daemon.jobs[:2]] * 3]
    assert done.err.count("the daemon stopped; waiting for it to run again") == 1
    assert done.err.count("the daemon runs again") == 1
    daemon.answers[daemon.jobs[1]] = CommandError("not-running", "the daemon stopped")
    assert shoal("result", "--all").code == 10, "without --wait there is nothing to wait for"
