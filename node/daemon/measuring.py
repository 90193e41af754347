"""Measures this machine if its speed is unknown, beside the start of the node, and publishes the
result."""

from ...state.directory import Directory
from ...tasks.hardware.errors import ProbeFailed
from ...tasks.hardware.facts import Device, usable
from ...tasks.hardware.hardware import Hardware
from .base import Base
from .telling.giving import shown_rate

CONDITION = "speed"


async def measure_machine(base: Base, directory: Directory) -> None:
    """Measure the machine if the owner allows it and its speed is unknown. Publish the result.

    In any case, the engine may start afterwards.
    """
    hardware = base.hardware
    if base.config.measure and hardware.measurable:
        base.say("measuring this machine, once, for up to 10 s; the node joins meanwhile")
        try:
            await hardware.measure(base.threads)
        except ProbeFailed as error:
            base.health.report(
                CONDITION,
                f"the speed of this machine was not measured: {error.message}",
                hint="the node works without it, and measures again at its next start",
            )
        directory.publish(capacity=base.capacity)
        for line in speed_lines(hardware):
            base.say(line)
    hardware.settled.set()


def speed_lines(hardware: Hardware) -> list[str]:
    """Return one line for each measured device and one for the disk."""
    lines = [
        f"measured   {_speed(each)}" for each in usable(hardware.devices()) if each.speed.batch
    ]
    if hardware.load_rate:
        lines.append(f"measured   the disk reads {shown_rate(round(hardware.load_rate))}")
    return lines


def _speed(device: Device) -> str:
    speed, label = device.speed, f" ({device.label})" if device.label else ""
    return (
        f"{device.name}{label}: {speed.float32 / 1e9:.0f} Gflop/s in float32, "
        f"{speed.bfloat16 / 1e9:.0f} in bfloat16, memory {shown_rate(round(speed.bandwidth))}, "
        f"up to {speed.batch} rows in the time of one"
    )
