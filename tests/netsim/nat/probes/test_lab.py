"""The probes tell kinds apart that no kernel implements, by their own names."""

import pytest

from shoal.netsim.nat.probes.lab import SimLab

KINDS = [f"{m}m-{f}f" for m in ("ei", "ad", "apd") for f in ("ei", "ad", "apd")]
QUICK = ("mapping", "filtering", "hairpin", "tcp_out", "tcp_unsolicited")


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_classified_as_its_name_says(kind: str) -> None:
    found = SimLab(kind).run(QUICK)
    assert f"{found['udp.mapping']}-{found['udp.filtering']}".lower() == kind
    assert found["udp.preserves"] is kind.startswith("eim")
    # The called host has not spoken to the caller: only an open filter lets it in, hairpin or not.
    assert found["udp.hairpin"] == ("external" if kind.endswith("eif") else "no")
    assert found["tcp.out"] == "connected"
    assert found["tcp.unsolicited.unmapped"] == "silence"


def test_gateway_that_resets_is_recognised() -> None:
    found = SimLab("eim-apdf", tcp_unsolicited="rst").run(("tcp_unsolicited", "tcp_simultaneous"))
    assert found["tcp.unsolicited.unmapped"] == "refused"
    # RFC 5382: the reason why it must be silent
    assert found["tcp.simultaneous.150ms.a"] == "refused"


def test_blocked_udp_is_no_mapping_at_all() -> None:
    found = SimLab("udp-blocked").run(("mapping", "filtering", "race", "punch", "timers"))
    assert found["udp.mapping"] == found["udp.filtering"] == "none"
    assert not any(value for name, value in found.items() if ".punch." in name)
