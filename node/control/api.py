"""Control socket operation on the HTTP API. Specified in docs/spec/control.md."""

from collections.abc import Mapping
from typing import Final

import trio

from ..errors import ControlError
from ..http.server import ApiServer
from .messages.api import ApiView, GetApi
from .server import Emit, Operation, operation

_ON: Final = "`shoal config set api yes`, then start the node again"


class ApiOperations:
    """Control socket operation on the HTTP API of one node; None if it is off."""

    def __init__(self, api: ApiServer | None) -> None:
        self._api = api

    def table(self) -> Mapping[str, Operation]:
        return dict((operation(GetApi, self.show),))

    async def show(self, _ask: GetApi, _emit: Emit) -> ApiView:
        await trio.lowlevel.checkpoint()
        if self._api is None:
            raise ControlError("api-off", "the HTTP API of this node is off", hint=_ON)
        if not self._api.url:
            raise ControlError(
                "api-off", "the HTTP API has no port", hint="`shoal status` says why"
            )
        return ApiView(self._api.url, self._api.token, next(iter(self._api.models()), None))
