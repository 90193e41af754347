"""Jobs as words, for `shoal job list` and `shoal job show`."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from . import render

if TYPE_CHECKING:
    from ..node.control.messages import jobs as messages

HEADS = ("JOB", "STATE", "ROWS", "MODEL", "BY", "PROMPT")
NOT_KEPT = "this node does not store other nodes' jobs (`shoal node --state all` does)"
SEALED = {"all": "rows and outputs", "outputs": "outputs; every node can read the rows"}
LETTERS = 12  # letters of a job id that are shown
ABSTRACT = 48  # most characters of a prompt in a table


def page(
    answer: "messages.JobsPage", *, mine: bool, state: str | None, offset: int
) -> Iterator[str]:
    """Yield the lines of a list of jobs. The arguments are the options of the command."""
    kept = mine or answer.stores
    totals = answer.totals
    if not any(totals.values()):
        none = "there are no jobs" if kept else NOT_KEPT
        yield f"{none}; submit one with `shoal job submit MODEL PROMPT`"
        return
    if answer.jobs:
        yield render.table(HEADS, [_row(item, answer.own) for item in answer.jobs])
    elif state is not None:
        yield f"no job is {state}"
    yield _totals(totals)
    if any(item.place for item in answer.jobs):
        yield _share(answer)
    if answer.more:
        after = offset + len(answer.jobs)
        yield f"and {answer.more} more: add `--offset {after}`, or `--limit N`"
    if not kept:
        yield NOT_KEPT


def fields(answer: "messages.ShownJob") -> str:
    """Format all that is known about one job."""
    rows = [
        ("job", render.safe(answer.job, 64)),
        ("kind", render.safe(answer.kind, 32)),
        ("state", _state(answer)),
        ("rows", _rows(answer)),
        ("author", render.short(answer.author)),
        ("model", render.name(answer.model or "-", 64)),
        ("prompt", render.safe(answer.abstract, 300)),
    ]
    if answer.spec is not None and answer.spec.sealed:
        rows.append(("sealed", SEALED.get(answer.spec.sealed, "")))
    if answer.made:
        rows.append(("submitted", _time(answer.made)))
    if answer.deadline:
        rows.append(("deadline", _time(answer.deadline)))
    if answer.replicated:
        rows.append(("copies", "another node has the job and its rows"))
    elif answer.lack is not None:
        rows.append(("copies", render.safe(answer.lack.message, 400)))
        rows.append(("", render.safe(answer.lack.hint, 400)))
    if answer.rows_done:
        rows.append(("checked", _checked(answer)))
    if answer.came:
        rows.append(("result", f"came {_time(answer.came)}"))
    claims = sorted(answer.claims, key=lambda claim: claim.piece)
    rows += [("claims", _claim(claim, answer.pieces)) for claim in claims]
    return render.fields(rows)


def _checked(item: "messages.JobView") -> str:
    if not item.rows_checked:
        return "no row; one in 50 is, if another node serves the model"
    rows = render.count(item.rows_checked, "row")
    return f"{rows} of {item.rows_done}, recomputed by other nodes with the same output"


def _totals(totals: Mapping[str, int]) -> str:
    """Format the number of jobs in each state: `1000 jobs: 12 open, 3 claimed, 985 done`."""
    parts = ", ".join(f"{count} {state}" for state, count in totals.items() if count)
    return f"{render.count(sum(totals.values()), 'job')}: {parts}"


def _share(page: "messages.JobsPage") -> str:
    """Format this node's part of the time for jobs."""
    if not page.users:
        return "no other user has jobs now"
    users = render.count(page.users, "other user")
    return f"your jobs get {100 * page.share:.0f} % of the time for jobs beside {users}"


def _row(item: "messages.JobView", own: str) -> list[str]:
    claimant = item.claimant
    by = "" if claimant is None else "this node" if claimant == own else _peer(claimant)
    return [
        render.safe(item.job[:LETTERS]),
        _state(item),
        _rows(item),
        render.name(item.model or item.kind, 24),
        by,
        render.safe(item.abstract, ABSTRACT),
    ]


def _state(item: "messages.JobView") -> str:
    said = str(item.state)
    if item.error:
        said += f" ({render.safe(item.error)})"
    elif item.state == "claimed" and item.attempt > 1:
        said += f" (attempt {item.attempt})"
    elif item.came:
        said += ", read" if item.read else ""
    elif item.place:
        said += f", place {item.place}"
    only_here = item.replicated is False and item.state == "open"
    return f"{said}, only here" if only_here else said


def _rows(item: "messages.JobView") -> str:
    """Format the number of rows of a job: `12/1000, 3 failed`, or `1`."""
    done = f"{item.rows_done}/" if item.rows_done < item.rows and item.rows > 1 else ""
    failed = f", {item.rows_failed} failed" if item.rows_failed and item.rows > 1 else ""
    return f"{done}{item.rows}{failed}"


def _claim(claim: "messages.ClaimView", pieces: int) -> str:
    state = "refused" if claim.refused else "done" if claim.done else "in progress"
    step = f", step {claim.step}" if claim.step else ""
    piece = f"piece {claim.piece + 1} of {pieces}, " if pieces > 1 else ""
    return f"{_peer(claim.claimant)}  {piece}attempt {claim.attempt}: {state}{step}"


def _peer(peer: str) -> str:
    return render.short(peer)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
