"""Changes to the store are visible at once and made once, and closing does not shrink the file."""

from importlib.machinery import SourceFileLoader
from typing import Any

import pytest
import trio

from shoal.state.errors import StoreRefused
from shoal.state.feeds import committer as keeper_file
from shoal.state.feeds.committer import Committer
from shoal.state.feeds.entry import Proof
from shoal.state.feeds.store import Store

from .chains import chain, identity, name, sealed
from .feeds.test_committer import FOLDER, Lives, begin, everything, run


@pytest.mark.parametrize("fault", ["full", "read-only"])
@pytest.mark.parametrize("how", ["forget", "drop", "cut", "cut to nothing"])
def test_removed_entries_are_not_read_while_the_disk_refuses(how: str, fault: str) -> None:
    """Fails if only new entries are looked up: replacements would not be read, and the author's
    feeds would be fetched again for as long as the disk refuses."""
    old, new = chain(1, 4), chain(1, 3, salt=b"x")
    proof = Proof.of(chain(1, 1, kind="jobs")[0], chain(1, 1, kind="jobs", salt=b"x")[0])
    left = old[:2] if how == "cut" else []
    after = chain(1, 2, after=left, salt=b"y") if left else new

    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            await committer.put(old)
            await committer.put_proof(proof)
            begin(lives, fault)
            with pytest.raises(StoreRefused):
                await committer.put(chain(9, 1, size=20_000), own=True)
            if how == "drop":
                await committer.drop([identity(1).peer])
            elif how == "forget":
                await committer.forget([name(1), name(1, "jobs")])
            else:
                await committer.cut(name(1), left[-1].head if left else None)
                await committer.cut(name(1, "jobs"), None)
            assert await committer.entries(name(1), 1, 0) == sealed(left)
            assert await committer.proof(name(1, "jobs")) is None
            await committer.put(after)
            there = sealed([*left, *after])
            assert await committer.entries(name(1), 1, 0) == there
            lives.empty()
            lives.disk.read_only = False
            await trio.sleep(20)
            assert not lives.troubles
            assert await committer.entries(name(1), 1, 0) == there
            assert await committer.proof(name(1, "jobs")) is None
        async with lives.running() as committer:
            assert [feed.entries for feed in await everything(committer)] == [tuple(there)]

    run(body)


def test_each_change_is_made_once_without_asserts() -> None:
    """As with `python -O`. Fails if the work is done inside an assert."""
    path = keeper_file.__file__
    with open(path, "rb") as file:
        code = SourceFileLoader(keeper_file.__name__, path).source_to_code(
            file.read(), path, _optimize=1
        )
    module: dict[str, Any] = {"__name__": keeper_file.__name__, "__package__": "shoal.state.feeds"}
    exec(code, module)  # noqa: S102

    async def body(lives: Lives) -> None:
        bare: Committer = module["Committer"](
            lives.host, FOLDER, trouble=lambda *_: None, lost=lambda _: None
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: bare.run(task_status=task_status))
            await bare.put(chain(1, 3))
            waiting = len(bare.queue)
            bare.queue.clear()  # otherwise it would be committed endlessly
            nursery.cancel_scope.cancel()
        assert not waiting

    run(body)


def test_closing_does_not_shrink_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if closing shrinks the file, which takes minutes for a large one."""
    ending, slices, real = False, 0, Store.make_smaller

    def make_smaller(self: Store) -> None:
        nonlocal slices
        slices += ending
        real(self)

    monkeypatch.setattr(Store, "make_smaller", make_smaller)

    async def body(lives: Lives) -> None:
        nonlocal ending
        async with lives.running() as committer:
            for number in range(1, 101):
                await committer.put(chain(number, 1, kind="jobs", size=50_000))
            full = lives.disk.used
        committer = lives.committer()
        async with trio.open_nursery() as outer:
            async with trio.open_nursery() as nursery:
                await nursery.start(lambda task_status: committer.run(task_status=task_status))
                await trio.sleep(1)
                outer.start_soon(committer.drop, [identity(number).peer for number in range(1, 91)])
                await trio.lowlevel.checkpoint()
                ending = True
                nursery.cancel_scope.cancel()
        assert slices == 0
        ending = False
        async with lives.running() as committer:
            assert len(await everything(committer)) == 10, "queued changes are committed"
            await committer.put(chain(1, 1))
            await trio.sleep(10)
            assert lives.disk.used < full / 3, "a later run makes it smaller"

    run(body)
