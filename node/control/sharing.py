"""Control socket operations on models of other engines. Specified in docs/spec/control.md."""

from collections.abc import Iterable, Mapping

import trio

from ...tasks.sharing.sharing import SharedNow
from ...transport import naming
from ...transport.identity import PeerId
from ..daemon.base import Base
from ..daemon.sharing import SharingParts
from ..folder import disk_errors
from .messages import sharing as messages
from .messages.models import OfferView
from .server import Emit, Operation, operation


class SharingOperations:
    """Control socket operations on what one node shares."""

    def __init__(self, base: Base, parts: SharingParts) -> None:
        self._base = base
        self._parts = parts

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.ListShares, self.shares),
                operation(messages.AddShare, self.add),
                operation(messages.StopShare, self.stop),
            )
        )

    async def shares(self, _ask: messages.ListShares, _emit: Emit) -> messages.SharesView:
        await trio.lowlevel.checkpoint()
        return self._view(self._parts.sharing.all())

    async def add(self, ask: messages.AddShare, _emit: Emit) -> messages.SharesView:
        self._base.refuse_when_stopping()
        name = None if ask.name is None else naming.normal(ask.name)
        sharing = self._parts.sharing
        with disk_errors(self._base.config.folder):
            added = await sharing.add(
                ask.url, ask.models, name, every=ask.every, at_once=ask.at_once
            )
        return self._view(now for now in sharing.all() if now.share in added)

    async def stop(self, ask: messages.StopShare, _emit: Emit) -> messages.StoppedShare:
        with disk_errors(self._base.config.folder):
            share = await self._parts.sharing.stop(naming.normal(ask.name))
        return messages.StoppedShare(name=share.name, model=share.model, url=share.url)

    def _view(self, shares: Iterable[SharedNow]) -> messages.SharesView:
        return messages.SharesView(
            shares=share_views(self._parts, shares), audience=self._parts.audience
        )


def share_views(parts: SharingParts, shares: Iterable[SharedNow]) -> tuple[messages.ShareView, ...]:
    """Describe models that this node shares."""
    return tuple(_share_view(parts, now) for now in shares)


def _share_view(parts: SharingParts, now: SharedNow) -> messages.ShareView:
    line, model, barred = now.watch.line, now.model, parts.sharing.barred
    return messages.ShareView(
        name=now.share.name,
        called=parts.called(now.share.name),
        model=now.share.model,
        url=now.share.url,
        local=now.share.address.is_local,
        engine=model.dialect.name if model is not None else None,
        context=model.context if model is not None else 0,
        offered=model is not None and barred is None,
        trouble=barred or now.trouble or None,
        at_once=line.at_once,
        running=line.running,
        waiting=line.waiting,
        answered=line.answered,
    )


def offer_views(parts: SharingParts, own: PeerId) -> tuple[OfferView, ...]:
    """Describe all shared models that live members offer."""
    return tuple(
        OfferView(
            called=called,
            name=offer.model.name,
            peer=offer.peer,
            engine=offer.model.engine,
            context=offer.model.context,
            takes=offer.model.takes,
            here=offer.peer == own,
        )
        for called, offer in parts.offers()
    )
