"""Conversion of a scenario's links into the simulator's specifications."""

import dataclasses
from typing import Any

from ...errors import BadScenario
from ...network.link import Burst, LinkSpec, PipeSpec
from . import units, vocabulary
from .tables import Direction, Link

_BURST = ("bad", "good", "loss_bad", "loss_good")


def pipe_spec(link: Link, own: Direction, way: str) -> PipeSpec:
    """Return one direction: the profile, then the values for both directions, then its own.

    Raises BadScenario naming the knob with an impossible value.
    """
    spec: PipeSpec = getattr(vocabulary.profile(link.profile), way)
    for table in (link.both, own):
        changes: dict[str, Any] = {
            item.name: value
            for item in dataclasses.fields(Direction)
            if (value := getattr(table, item.name)) is not None
        }
        if "burst" in changes:
            changes["burst"] = _burst(changes["burst"])
        spec = dataclasses.replace(spec, **changes)
        for needy, needed in (("queue", "rate"), ("reorder_delay", "reorder")):
            if needy in changes and not getattr(spec, needed):
                raise BadScenario(
                    f"`{needy}` has no effect here: there is no `{needed}`",
                    hint=f"set `{needed}`, or leave `{needy}` out",
                )
    if spec.mtu < 576:
        raise BadScenario("`mtu` is at least 576 B", hint="RFC 791: every host accepts 576 bytes")
    return spec


def _burst(table: dict[str, object]) -> Burst:
    for key in table:
        if key not in _BURST:
            raise BadScenario(
                f"`burst` has no key `{key}`", hint=f"its keys are {', '.join(_BURST)}"
            )
    try:
        shares = {key: units.share(value) for key, value in table.items()}
        if not {"bad", "good", "loss_bad"} <= set(shares):
            raise ValueError("it needs bad, good and loss_bad")
        if not shares["bad"] or not shares["good"]:
            raise ValueError("bad and good must be greater than 0")
    except ValueError as error:
        raise BadScenario(f"`burst`: {error}") from None
    return Burst(**shares)


def link_spec(link: Link) -> LinkSpec:
    """Return both directions of a `[[link]]`."""
    return LinkSpec(up=pipe_spec(link, link.up, "up"), down=pipe_spec(link, link.down, "down"))
