"""Result of port mapping, as sentences for the user."""

from dataclasses import dataclass, field

from .mapping import PortMapping, Scope

TITLES = {"pcp": "PCP", "nat-pmp": "NAT-PMP", "upnp": "UPnP"}
_BEHIND = {
    Scope.CARRIER: "its address {address} is inside the carrier's own NAT (double NAT), so "
    "strangers cannot use the ports; ask the provider for a public address, or rely on relays",
    Scope.PRIVATE: "its address {address} is private: another router stands before it (double "
    "NAT), so strangers cannot use the ports; set this router to bridge mode, or map the ports on "
    "the other one too",
}


@dataclass(slots=True)
class PortmapOutcome:
    """Findings of the port mapper so far."""

    gateway: str | None = None  # IP address of the router; None if there is none to ask
    own: str | None = None  # our own IP address in its network
    answers: dict[str, str] = field(default_factory=dict)
    """The router's reply for each protocol (`pcp`, `nat-pmp`, `upnp`), in our own words."""
    mapping: PortMapping | None = None
    note: str = ""
    """Why no ports are requested; "" if they are."""

    def sentences(self) -> list[str]:
        """Return the findings, and what the user could change, as sentences for `shoal doctor`."""
        if self.note:
            return [self.note]
        if self.mapping is None:
            answers = [f"{TITLES[name]}: {words}" for name, words in self.answers.items()]
            said = "; ".join(answers) or "not asked yet"
            return [
                f"the router {self.gateway} maps no ports ({said})",
                "switch on UPnP or NAT-PMP in its settings, or forward the port by hand",
            ]
        return [self._held(self.mapping), *self._double(self.mapping)]

    def _held(self, mapping: PortMapping) -> str:
        ports = {"TCP": mapping.tcp_port, "UDP": mapping.udp_port}
        named = " and ".join(f"{name} port {port}" for name, port in ports.items() if port)
        return (
            f"the router {mapping.gateway} leads {named} of {mapping.address} to this computer "
            f"({TITLES[mapping.protocol]})"
        )

    def _double(self, mapping: PortMapping) -> list[str]:
        words = _BEHIND.get(mapping.scope)
        return ["but " + words.format(address=mapping.address)] if words else []
