"""The owner's side: which models are shared, whether their engines answer, what is published."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from ...state.membership.record import SharedModel
from ...transport import naming
from ...transport.guard import Guard
from ...transport.host.seam import Host
from . import defaults, store
from .address import EngineAddress, parse_address
from .dialects import EngineModel
from .engine import HttpEngine
from .errors import EngineFailed, EngineGone, ShareError
from .line import EngineLine
from .pulse import Pulse
from .store import OwnShare

Publish = Callable[[tuple[SharedModel, ...]], None]
_PART: Final = re.compile(r"[^A-Za-z0-9._-]+")
_HASH: Final = re.compile(r"[0-9a-f]{8,64}")
_LATEST: Final = ":latest"  # Ollama's mark of a model without a version


class EngineWatch:
    """One engine that a node shares: its models, its line of requests, and whether it answers."""

    def __init__(self, host: Host, address: EngineAddress) -> None:
        self.engine = HttpEngine(host, address)
        self.line = EngineLine()
        self.models: dict[str, EngineModel] = {}
        self.trouble = "it was not asked yet"
        self.first_s = 0.0  # seconds to the first text, and of a whole answer
        self.answer_s = 0.0
        self.scope = trio.CancelScope()
        self._host = host
        self._pulse = Pulse()
        self._due = trio.Event()

    @property
    def offered(self) -> bool:
        """Whether the engine's models are offered to the swarm."""
        return self._pulse.offered

    def look_now(self) -> None:
        """Look at the engine at once, because a request failed."""
        self._due.set()

    async def look(self) -> None:
        """Ask the engine for its models once, and note the result."""
        try:
            found = await self.engine.models()
        except EngineFailed as error:
            gone = isinstance(error, EngineGone)
            self._pulse.missed(self._host.now(), gone=gone)
            self.trouble = error.message
        else:
            self.take(found)

    def take(self, models: Iterable[EngineModel]) -> None:
        """Note an answer of the engine, with its models."""
        self._pulse.heard(self._host.now())
        self.models = {model.name: model for model in models}
        self.trouble = ""

    def measure(self, first_s: float | None, answer_s: float) -> None:
        """Add the times of one answer to the means. `first_s` is None if it had no text."""
        weight = defaults.RATE_WEIGHT if self.answer_s else 0.0
        self.answer_s = weight * self.answer_s + (1 - weight) * answer_s
        if first_s is not None:
            weight = defaults.RATE_WEIGHT if self.first_s else 0.0
            self.first_s = weight * self.first_s + (1 - weight) * first_s

    async def wait(self) -> None:
        """Wait until the next look is due."""
        with trio.move_on_after(defaults.LOOK):
            await self._due.wait()
        self._due = trio.Event()


@dataclass(frozen=True, slots=True)
class SharedNow:
    """A share, with what answers its requests. `model` is None while the engine does not answer or
    no longer has the model."""

    share: OwnShare
    watch: EngineWatch
    model: EngineModel | None

    @property
    def trouble(self) -> str:
        """Why the model is not offered now, or ""."""
        if self.model is not None:
            return ""
        return self.watch.trouble or "the engine no longer has this model, or has just come back"


class Sharing:
    """The models that one node shares. `run` must be running."""

    def __init__(
        self,
        host: Host,
        path: Path,
        publish: Publish,
        *,
        guard: Guard | None = None,
        trouble: Callable[[ShareError | None], None] = lambda _: None,
    ) -> None:
        """`path` is the file of the shares. `publish` tells the swarm what is offered now.
        `guard` catches bugs that an engine triggers. `trouble` is called if the file is damaged."""
        self._host = host
        self._path = path
        self._publish = publish
        self._guard = guard or Guard()
        self._trouble = trouble
        self._shares: dict[str, OwnShare] = {}
        self._watches: dict[str, EngineWatch] = {}  # by URL
        self._barred: str | None = None
        self._said: tuple[SharedModel, ...] = ()
        self._nursery: trio.Nursery | None = None
        self._changing = trio.Lock()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Share what the file lists, until cancelled. `nursery.start` returns when it is read."""
        try:
            found = await store.load(self._host, self._path)
        except ShareError as error:
            self._trouble(error)
            found = []
        async with trio.open_nursery() as self._nursery:
            for share in found:
                self._begin(share)
            task_status.started()
            await trio.sleep_forever()

    # For the owner.

    @property
    def running(self) -> int:
        """Number of requests that engines answer now."""
        return sum(watch.line.running for watch in self._watches.values())

    def all(self) -> list[SharedNow]:
        """Return all shares, sorted by name."""
        return [self._now(self._shares[name]) for name in sorted(self._shares)]

    def find(self, name: str) -> SharedNow | None:
        """Return the share with this name, if it is offered now."""
        share = self._shares.get(name)
        if share is None or self._barred is not None:
            return None
        now = self._now(share)
        return now if now.model is not None else None

    @property
    def barred(self) -> str | None:
        """Why this node shares nothing for now, or None."""
        return self._barred

    def bar(self, why: str | None) -> None:
        """Withdraw everything while `why` is not None."""
        self._barred = why
        self._say()

    def leave(self) -> None:
        """Withdraw everything, because the node stops."""
        self.bar("this node is stopping")

    async def add(
        self, url: str, models: Sequence[str], name: str | None, *, every: bool, at_once: int
    ) -> list[OwnShare]:
        """Share models of the engine at `url`, and return the new shares.

        `models` are the engine's names, empty for its only model, or for all with `every`. `name`
        is the name in the swarm for a single model. Raises ShareError if the engine does not
        answer or has no such model, or if a name is taken or invalid. Raises OSError if the disk
        fails; then nothing is shared.
        """
        address = parse_address(url)
        listed = {model.name: model for model in await HttpEngine(self._host, address).models()}
        chosen = _chosen(list(listed), models, every=every)
        if name is not None and len(chosen) > 1:
            raise ShareError("bad-request", "one name was given for several models")
        new = [OwnShare(address.url, each, name or name_of(each), at_once) for each in chosen]
        async with self._changing:
            self._check(new)
            after = {**self._shares, **{share.name: share for share in new}}
            await store.save(self._host, self._path, after.values())
            self._trouble(None)
            for share in new:
                self._begin(share).take(listed.values())
            self._say()
        return new

    async def stop(self, name: str) -> OwnShare:
        """Stop sharing a model. Its running requests end. Raises ShareError `not-shared`."""
        async with self._changing:
            share = self._shares.get(name)
            if share is None:
                raise not_shared(name, "`shoal share list` shows what this node shares")
            after = [each for each in self._shares.values() if each is not share]
            await store.save(self._host, self._path, after)
            del self._shares[name]
            if all(each.url != share.url for each in after):
                self._watches.pop(share.url).scope.cancel()
            self._say()
        return share

    def _check(self, new: Sequence[OwnShare]) -> None:
        """Raise ShareError if the shares cannot be added."""
        if len({*self._shares, *(share.name for share in new)}) > defaults.SHARES:
            raise ShareError("too-many", f"a node shares {defaults.SHARES} models at most")
        names = set[str]()
        for share in new:
            check_name(share.name)
            before = self._shares.get(share.name)
            taken = before is not None and (before.url, before.model) != (share.url, share.model)
            if taken or share.name in names:
                raise ShareError(
                    "name-taken",
                    f"this node shares another model as `{share.name}`",
                    hint="choose another name: `shoal share URL --model MODEL --as NAME`",
                )
            names.add(share.name)

    # Watching.

    def _begin(self, share: OwnShare) -> EngineWatch:
        self._shares[share.name] = share
        watch = self._watches.get(share.url)
        if watch is None:
            watch = self._watches[share.url] = EngineWatch(self._host, share.address)
            assert self._nursery is not None, "Sharing.run is not running"
            self._nursery.start_soon(self._watch, watch)
        watch.line.at_once = share.at_once
        return watch

    async def _watch(self, watch: EngineWatch) -> None:
        with watch.scope:
            while True:
                with self._guard.around(watch.engine.address.authority):
                    await watch.look()
                self._say()
                await watch.wait()

    def _now(self, share: OwnShare) -> SharedNow:
        watch = self._watches[share.url]
        model = watch.models.get(share.model) if watch.offered else None
        return SharedNow(share, watch, model)

    def _say(self) -> None:
        """Publish what is offered now, if it has changed."""
        offers = tuple(
            SharedModel(
                now.share.name, now.model.dialect.name, now.model.context, now.model.dialect.takes
            )
            for now in self.all()
            if now.model is not None and self._barred is None
        )
        if offers != self._said:
            self._said = offers
            self._publish(offers)


def _chosen(listed: Sequence[str], models: Sequence[str], *, every: bool) -> list[str]:
    """Return the engine's models to share. Raises ShareError if there are none, or several and the
    owner did not choose."""
    if not listed:
        raise ShareError("no-model", "the engine serves no model", hint="load one in the engine")
    shown = ", ".join(f"`{naming.escaped(each)}`" for each in listed[: defaults.SHARES])
    for each in models:
        if each not in listed:
            raise ShareError(
                "no-model",
                f"the engine has no model {ascii(each)[:80]}",
                hint=f"it has {shown}",
            )
    if models:
        return list(dict.fromkeys(models))
    if len(listed) > 1 and not every:
        raise ShareError(
            "several-models",
            f"the engine has {len(listed)} models: {shown}",
            hint="choose with `--model MODEL`, which may be repeated, or share all with `--all`",
        )
    return list(listed)


def name_of(model: str) -> str:
    """Return the name in the swarm of an engine's model, from the name that the engine gives it:
    `llama3.2:1b` becomes `llama3.2-1b`, and a path becomes its last part."""
    text = model.removesuffix(_LATEST).rstrip("/")
    for separator in "/\\":
        text = text.rpartition(separator)[2]
    text = text.removesuffix(".gguf")
    text = _PART.sub("-", text).strip("._-")[: naming.MOST]
    return text or "model"


def check_name(name: str) -> None:
    """Raise ShareError `bad-name` unless a shared model may have this name. The rule is that of all
    names of models."""
    problem = naming.problem(name)
    if not problem and _HASH.fullmatch(name):
        problem = "it looks like the start of a root hash"
    if problem:
        raise ShareError(
            "bad-name", f"{ascii(name)[:80]} cannot be a name: {problem}", hint=naming.HINT
        )


def not_shared(name: str, hint: str) -> ShareError:
    """Return the error for a model that is not shared."""
    return ShareError("not-shared", f"no model {ascii(name)[:80]} is shared here", hint=hint)
