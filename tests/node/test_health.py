"""The registry of conditions."""

from shoal.node.health import Condition, Health


def test_report_and_clear() -> None:
    heard: list[Condition] = []
    health = Health(heard.append)
    health.report("disk-full", "the disk is full", hint="free some space")
    health.report("disk-full", "the disk is full", hint="free some space")
    health.report("no-engine", "torch is not installed")
    assert [item.name for item in health.conditions()] == ["disk-full", "no-engine"]
    assert len(heard) == 2, "a repeated report causes no call"
    health.report("disk-full", "the disk is fuller")
    assert heard[-1].sentence == "the disk is fuller"
    health.clear("disk-full")
    health.clear("never reported")
    assert [item.name for item in health.conditions()] == ["no-engine"]
