"""Programs that the hosts of a scenario run, and the settings of each program.

Public: `SETTINGS` and `ProgramSettings`, and the class of each program. Imports `daemons/`,
`format/` and `network/`.
"""

from typing import Final

from .daemon import DaemonSettings
from .echo import Echo, EchoSettings
from .idle import Idle, IdleSettings
from .punch import PunchSettings
from .transfer import TransferProgram as TransferProgram
from .transfer import TransferSettings

ProgramSettings = DaemonSettings | EchoSettings | TransferSettings | PunchSettings | IdleSettings
# Settings by the program's name in a scenario file.
SETTINGS: Final[dict[str, type[ProgramSettings]]] = {
    "daemon": DaemonSettings,
    "udp-echo": EchoSettings,
    "tcp-transfer": TransferSettings,
    "punch": PunchSettings,
    "idle": IdleSettings,
}

__all__ = ["SETTINGS", "Echo", "Idle", "ProgramSettings", "Transfer"]
