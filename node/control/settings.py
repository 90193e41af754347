"""Control socket operations on settings: show and set. Specified in docs/spec/control.md."""

from collections.abc import Mapping

import trio

from ...transport.host.seam import Host
from ..settings.applying import LiveParts, LiveSettings
from ..settings.settings import set_key, view
from .messages.settings import ChangedSetting, ChangeSetting, GetSettings, SettingsView
from .server import Emit, Operation, operation


class SettingOperations:
    """Control socket operations on the settings of one node. `parts` are the parts of the daemon to
    which changes are applied at once."""

    def __init__(self, host: Host, settings: LiveSettings, parts: LiveParts) -> None:
        self._host = host
        self._settings = settings
        self._parts = parts
        self._one_at_a_time = trio.Lock()  # a change reads the file and writes it back

    def table(self) -> Mapping[str, Operation]:
        return dict((operation(GetSettings, self.show), operation(ChangeSetting, self.set)))

    async def show(self, _ask: GetSettings, _emit: Emit) -> SettingsView:
        host, settings = self._host, self._settings
        async with self._one_at_a_time:
            return await host.offload(view, host, settings.config.folder, settings.given)

    async def set(self, ask: ChangeSetting, _emit: Emit) -> ChangedSetting:
        """Store a new value in the settings file. If the setting is a live one, apply the value at
        once as well."""
        host, folder = self._host, self._settings.config.folder
        async with self._one_at_a_time:
            setting = await host.offload(set_key, host, folder, ask.key, ask.text)
            live = setting is not None and setting.key.live
            if setting is not None and live:
                self._settings.change(setting, self._parts)
        return ChangedSetting(ask.key, None if setting is None else setting.text, applied=live)
