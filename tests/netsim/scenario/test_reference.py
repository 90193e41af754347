"""docs/spec/scenario.md is what the tables say of themselves."""

from pathlib import Path

from shoal.netsim.scenario.reference import reference

SPEC = Path(__file__).resolve().parents[3] / "docs" / "spec" / "scenario.md"


def test_the_reference_is_up_to_date() -> None:
    assert SPEC.read_text() == reference(), (
        "run: python -m shoal.netsim.scenario.reference > docs/spec/scenario.md"
    )
