"""A result, as `dataclasses.asdict` makes it, becomes a page."""

from collections import Counter
from typing import Any, Final

import jinja2

from ..scenario.metrics import STATISTICS
from . import plots
from .template import PAGE

_ENVIRONMENT: Final = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)


def page(run: dict[str, Any]) -> str:
    """The whole HTML file. Names in it come from scenarios and are escaped."""
    metrics = run["metrics"]
    return _ENVIRONMENT.from_string(PAGE).render(
        run=run,
        scalars=list(_scalars(metrics)),
        spreads=[
            (name, {key: f"{number:.4g}" for key, number in value.items()})
            for name, value in sorted(metrics.items())
            if isinstance(value, dict) and name != "drops"
        ],
        keys=STATISTICS,
        kinds=_kinds(run["hosts"]),
        deeds=sorted(Counter(deed[1] for deed in run["deeds"]).items()),
        plots=plots.of(run),
    )


def _scalars(metrics: dict[str, Any]) -> Any:
    for name, value in sorted(metrics.items()):
        if name == "drops":
            yield from ((f"drops.{reason}", str(count)) for reason, count in value.items())
        elif not isinstance(value, dict):
            shown = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else value
            yield name, shown


def _kinds(hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hosts and their counters, summed by the kind of their gateway."""
    found: dict[str, Counter[str]] = {}
    for host in hosts:
        sums = found.setdefault(host["kind"], Counter())
        sums["hosts"] += 1
        sums.update({key: host["counters"][key] for key in ("sent", "received", "dropped")})
    return [
        {"kind": kind, **{key: sums[key] for key in ("hosts", "sent", "received", "dropped")}}
        for kind, sums in sorted(found.items())
    ]
