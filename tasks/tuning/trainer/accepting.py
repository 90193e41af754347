"""Checks the fine-tunings that users request, before any of their data is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....dht.content.modelnames import check_new_name, slug
from ....state.defaults import JOB_PRIORITY
from ....transport import naming
from ....transport.host.seam import Host
from ...engine.families import Architecture
from . import defaults
from .encoding import Encoder
from .errors import TuningError
from .running import Tuning
from .settings import Wishes, check_wishes, row_length
from .surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Request:
    """A fine-tuning that a user wants. `name` and `out` are None if the user gave none.

    `moves` says whether other nodes may train it, and `sealed` whether what moves is sealed for the
    members of this node's group. `priority` and `deadline` order it among the jobs of this user.
    """

    model: str
    source: Path
    wishes: Wishes
    name: str | None = None
    out: Path | None = None
    moves: bool = False
    sealed: bool = False
    priority: int = JOB_PRIORITY
    deadline: int = 0


@dataclass(frozen=True, slots=True)
class Tunable:
    """A model that is to be tuned, and its text process. `context` is in tokens."""

    root: str
    arch: Architecture
    context: int
    encoder: Encoder


class Acceptance:
    """The conditions under which one node accepts a fine-tuning."""

    def __init__(self, host: Host, around: Surroundings) -> None:
        self._host = host
        self._around = around

    async def check(
        self, ask: Request, model: Tunable, others: Sequence[Tuning]
    ) -> tuple[str, str]:
        """Return the name of the adapter, and the path of the folder that the user wants or "".

        `others` are the fine-tunings of this node. Raises TuningError if the request cannot be met.
        """
        if len(others) >= defaults.TUNINGS:
            raise TuningError(
                "too-many-tunings",
                f"this node has {len(others)} fine-tunings",
                hint="remove some: `shoal finetune list`, then `shoal finetune rm ID`",
            )
        check_wishes(ask.wishes, model.arch, model.context)
        if ask.moves and (self._around.remote is None or ask.wishes.together is not None):
            raise TuningError(
                "stays",
                "a fine-tuning that is averaged with others stays on its node",
                hint="leave out `--movable` or `--together`",
            )
        if ask.sealed and not ask.moves:
            raise TuningError(
                "stays",
                "only a fine-tuning that may move is sealed; this one's data stay on this node",
                hint="add `--movable`, or leave out `--seal`",
            )
        if (ask.priority != JOB_PRIORITY or ask.deadline) and not ask.moves:
            raise TuningError(
                "stays",
                "only a fine-tuning that may move has a priority or a deadline, as jobs have",
                hint="add `--movable`, or leave out `--priority` and `--deadline`",
            )
        self._check_together(ask.wishes.together, others)
        if ask.wishes.full:
            await self._check_whole(ask, model)
        if ask.out is not None and await self._host.offload(self._is_used, ask.out):
            raise TuningError(
                "folder-used",
                f"the folder `{ask.out}` is not empty",
                hint="name a new one with `--out DIR`",
            )
        if ask.out is not None:
            await self._create(ask.out)
        taken = await self._taken(full=ask.wishes.full) | {each.plan.name for each in others}
        name = self._free_name(ask, taken) if ask.name is None else naming.normal(ask.name)
        check_new_name(name)
        if name in taken:
            raise TuningError(
                "name-taken",
                f"a model, an adapter or a fine-tuning of this node is called `{name}`",
                hint="choose another with `--name NAME`",
            )
        return name, str(ask.out or "")

    async def _taken(self, *, full: bool) -> set[str]:
        """Return the names that the result cannot have."""
        whole = self._around.whole
        return await (whole.named() if full and whole is not None else self._around.named())

    async def _check_whole(self, ask: Request, model: Tunable) -> None:
        """Raise TuningError unless this node can train all weights of a model."""
        if ask.moves:
            raise TuningError(
                "stays",
                "a fine-tuning of all weights stays on its node",
                hint="leave out `--movable` or `--full`",
            )
        length, together = row_length(ask.wishes, model.context), ask.wishes.together is not None
        await self._around.whole_training().check(model.root, model.arch, length, together=together)

    def _check_together(self, name: str | None, others: Sequence[Tuning]) -> None:
        """Raise TuningError unless this node may average under this name."""
        if name is None:
            return
        if why := naming.problem(name):
            raise TuningError(
                "bad-name", f"{ascii(name)[:80]} cannot be the name of a run: {why}",
                hint=naming.HINT,
            )  # fmt: skip
        if self._around.averaging is None:
            raise TuningError(
                "no-averaging",
                "this node cannot average with others",
                hint="leave out `--together`",
            )
        for each in others:
            if each.plan.settings.together == name and each.plan.state != "done":
                raise TuningError(
                    "together-used",
                    f"the fine-tuning {each.id} of this node takes part in `{name}` already",
                    hint=f"`shoal finetune rm {each.id}` removes it; another `--together NAME` is "
                    "another run",
                )

    def _is_used(self, path: Path) -> bool:
        files = self._host.files
        try:
            return bool(files.list(path))
        except OSError:
            return True

    async def _create(self, folder: Path) -> None:
        """Create the folder for the result now, since a wrong path would be found hours later.

        Raises TuningError `unwritable` if that fails.
        """
        try:
            await self._host.offload(self._host.files.make_folder, folder)
        except OSError as error:
            raise TuningError(
                "unwritable",
                f"cannot create the folder `{folder}`: {(error.strerror or str(error)).lower()}",
                hint="name another one with `--out DIR`, which the daemon's user may write",
            ) from None

    @staticmethod
    def _free_name(ask: Request, taken: set[str]) -> str:
        """Return a name from those of the model and the file that no other adapter has."""
        model = slug(Path(ask.model.partition("@")[0]))
        base = slug(Path(f"{model}-{ask.source.stem}"))[: naming.MOST - 4]
        numbered = (f"{base}-{number}" for number in range(2, len(taken) + 3))
        return base if base not in taken else next(each for each in numbered if each not in taken)
