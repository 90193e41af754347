"""HTML page that reports the result of a run."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import jinja2

from ..scenario.format.metrics import STATISTICS, Metrics, meaning, shown, value_of
from ..scenario.result import HostFigures, RunResult
from . import plots
from .template import PAGE

# Metrics at the top of the page. Each maps to the words that the page shows after the value.
HEADLINE: Final = {
    "punch.success_rate": "of the pairs heard each other",
    "punch.time.p50": "until a pair does (median)",
    "generate.success_rate": "of the requests answered",
    "generate.latency.p50": "for an answer (median)",
    "members.known": "of the others known to each daemon",
    "links.pairs": "of the pairs linked",
    "boot.p95": "until a daemon serves (p95)",
    "echo.answered_rate": "of the echoes answered",
    "rtt.p50": "there and back (median)",
    "rtt.p95": "there and back (p95)",
    "throughput.p50": "of a transfer (median)",
    "transfers.failed": "transfers failed",
    "packets.loss": "of the packets lost",
    "hosts.up": "hosts up at the end",
}
_ENVIRONMENT: Final = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)


# Descriptions of the pairs that a matrix counts, by `what` of a `PairMatrix`.
PAIRS: Final = {
    "linked": "pairs of running daemons that have a link at the end",
    "punched": "attempts of two hosts to reach each other that succeeded",
    "answered": "pairs of a host and its target of which an echo has come back",
}


def page(run: RunResult, scenario: str = "") -> str:
    """Return the whole HTML file. `scenario` is the text of the scenario's file.

    All texts from the run and the scenario are escaped. If `run` comes from a damaged file, raises
    KeyError, TypeError, ValueError, AttributeError or IndexError.
    """
    try:
        return _page(run, scenario)
    except jinja2.UndefinedError as error:
        raise ValueError(str(error)) from None


def _page(run: RunResult, scenario: str) -> str:
    """Render the template. Raises UndefinedError if a field is missing."""
    metrics = run.metrics
    return _ENVIRONMENT.from_string(PAGE).render(
        run=run,
        scenario=scenario.splitlines(),
        fast=_times(run.virtual / run.real) if run.real else "",
        pairs=PAIRS.get(run.pairs["what"], "pairs that met"),
        headline=list(_headline(metrics)),
        missed=sum(not item.met for item in run.verdicts),
        scalars=list(_scalars(metrics)),
        spreads=[
            (name, meaning(name), _statistics(name, value))
            for name, value in sorted(metrics.items())
            if isinstance(value, Mapping) and name != "drops"
        ],
        keys=STATISTICS,
        kinds=_kinds(run.hosts),
        deeds=sorted(Counter(deed[1] for deed in run.deeds).items()),
        plots=plots.of(run),
    )


def _headline(metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Yield (label, value) for the most important figures that were measured."""
    for metric, words in HEADLINE.items():
        value = value_of(metric, metrics)
        if value is not None:
            yield words, shown(metric, value)


def _statistics(name: str, value: Mapping[str, float]) -> dict[str, str]:
    """Format each statistic of a distribution with its unit."""
    return {key: shown(f"{name}.{key}", number) for key, number in value.items()}


def _times(ratio: float) -> str:
    """Format the ratio of virtual to real time."""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _scalars(metrics: Metrics) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, meaning) for each figure that is not a distribution."""
    for name, value in sorted(metrics.items()):
        if not isinstance(value, Mapping):
            yield name, shown(name, value), meaning(name)
        elif name == "drops":
            for reason, count in value.items():
                yield f"drops.{reason}", str(count), meaning(f"drops.{reason}")


def _kinds(hosts: list[HostFigures]) -> list[dict[str, str | int]]:
    """Return a row for each kind of gateway: the number of hosts and the sums of their counters.

    Kinds with the most hosts come first.
    """
    found: dict[str, Counter[str]] = {}
    for host in hosts:
        sums = found.setdefault(host.kind, Counter())
        sums["hosts"] += 1
        sums.update({key: host.counters[key] for key in ("sent", "received", "dropped")})
    return [
        {"kind": kind, **{key: sums[key] for key in ("hosts", "sent", "received", "dropped")}}
        for kind, sums in sorted(found.items(), key=lambda item: (-item[1]["hosts"], item[0]))
    ]
