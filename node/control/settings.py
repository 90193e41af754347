"""Control socket operations on settings: show and set. Specified in docs/spec/control.md."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from ..defaults import SETTING_LIMIT
from ..settings.applying import LIVE
from ..settings.settings import Setting, set_key, view
from .operations import maybe, text_of
from .server import Emit, Operation

if TYPE_CHECKING:
    from ..daemon.daemon import Node


class SettingOperations:
    """Operations on the settings of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._one_at_a_time = trio.Lock()  # a change reads the file and writes it back

    def table(self) -> Mapping[str, Operation]:
        return {"config": self.show, "config_set": self.set}

    async def show(self, _request: dict[str, Any], _emit: Emit) -> Mapping[str, Any]:
        node = self._node
        async with self._one_at_a_time:
            return await node.host.offload(view, node.host, node.config.folder, node.settings)

    async def set(self, request: dict[str, Any], _emit: Emit) -> Mapping[str, Any]:
        """Store a new value, and apply it at once if its key is live."""
        node, name = self._node, text_of(request, "key", SETTING_LIMIT)
        text = maybe(request, "text", lambda r, k: text_of(r, k, SETTING_LIMIT))
        async with self._one_at_a_time:
            setting = await node.host.offload(set_key, node.host, node.config.folder, name, text)
            live = setting is not None and setting.key.live
            if setting is not None and setting.key.live:
                self._apply(setting)
        return {"key": name, "text": setting and setting.text, "applied": live}

    def _apply(self, setting: Setting) -> None:
        node = self._node
        node.settings = node.settings.with_(setting)
        node.config = setting.key.change(node.config, setting.value)
        LIVE[setting.key.name](node)
