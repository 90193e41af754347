"""The parts of a daemon that serve layers: by its own choice, or because a gateway asked for a
model."""

from dataclasses import replace

from ...tasks.inference.gateway import Gateway
from ...tasks.inference.stage import Stage
from ...tasks.placement.demand import Backing
from ...tasks.serving.asked import AskedShards
from ...tasks.serving.interface import DeviceShare, ServingDevices, ServingSettings
from ...tasks.serving.slots import Slots
from ..models.consent import Witnesses, backing_of
from .base import Base
from .content import ContentParts
from .network import NetworkParts


class ServingParts:
    """The layers that one daemon serves (`slots`). It listens for requests of gateways to load a
    model, if it has an engine."""

    def __init__(
        self,
        base: Base,
        network: NetworkParts,
        content: ContentParts,
        stage: Stage,
        gateway: Gateway,
    ) -> None:
        self._gateway = gateway
        self._witnesses = Witnesses(
            network.endpoint, network.dialer, base.library, network.state, base.inviter
        )
        config, memory = base.config, base.capacity.memory_bytes
        settings = ServingSettings(memory, config.model, config.layers, config.dtype)
        shares = [DeviceShare(*each) for each in zip(base.engines, base.shares, strict=True)]
        devices = ServingDevices(stage, shares, base.no_engine)
        self.slots = Slots(base.host, devices, content.sources, settings, backing=self._backing)
        if base.engine is not None:
            AskedShards(
                base.host,
                stage,
                self.slots,
                content.sources,
                settings,
                backing=self._backing,
            ).listen(network.courier)

    def _backing(self) -> Backing:
        """Return the evidence for models that the owner did not name."""
        return replace(backing_of(self._witnesses), slower=self._gateway.choice.slower)
