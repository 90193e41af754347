"""Conversion of a scenario's links into the simulator's specifications."""

import dataclasses
from typing import Any

from ...errors import BadScenario
from ...network.link import Burst, LinkSpec, PipeSpec
from . import units, vocabulary
from .tables import DirectionTable, LinkTable

_BURST = ("bad", "good", "loss_bad", "loss_good")


def pipe_spec(link: LinkTable, own: DirectionTable, way: str) -> PipeSpec:
    """Return the specification of one direction (`way`: `up` or `down`) of a link.

    Values of `own`, for this direction, override those of `link.both`, which override the link's
    profile. Raises BadScenario, with the key in its message, if a value is impossible or has no
    effect.
    """
    spec: PipeSpec = getattr(vocabulary.profile(link.profile), way)
    for table in (link.both, own):
        changes: dict[str, Any] = {
            item.name: value
            for item in dataclasses.fields(DirectionTable)
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
    """Convert a `burst` table.

    Raises BadScenario if a key is unknown or missing, or if its value is not a share.
    """
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


def link_spec(link: LinkTable) -> LinkSpec:
    """Return the specification of a `[[link]]`, with both directions.

    Raises BadScenario if a value is impossible or has no effect.
    """
    return LinkSpec(up=pipe_spec(link, link.up, "up"), down=pipe_spec(link, link.down, "down"))
