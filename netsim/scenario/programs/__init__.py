"""The programs that hosts of a scenario run, by name, with the settings of each."""

from typing import Final

from .daemon import DaemonSettings
from .echo import Echo, EchoSettings
from .idle import Idle, IdleSettings
from .punch import PunchSettings
from .transfer import Transfer, TransferSettings

ProgramSettings = DaemonSettings | EchoSettings | TransferSettings | PunchSettings | IdleSettings
SETTINGS: Final[dict[str, type[ProgramSettings]]] = {
    "daemon": DaemonSettings,
    "udp-echo": EchoSettings,
    "tcp-transfer": TransferSettings,
    "punch": PunchSettings,
    "idle": IdleSettings,
}

__all__ = ["SETTINGS", "Echo", "Idle", "ProgramSettings", "Transfer"]
