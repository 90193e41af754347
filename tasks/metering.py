"""What other nodes' gateways have of this node: counted here, kept as facts by `accounting.py`.

No I/O. The owner's own requests are not counted.
"""

from collections.abc import Mapping

from ..state.views.usage import Count
from ..transport.identity import PeerId

User = tuple[PeerId, str]
"""A gateway, and the root of a model."""


class Meter:
    """Counts since the last `take`, by user. Bounded by the sessions there were in between."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._counts: dict[User, Count] = {}
        self.total = Count()
        """The sum over all users since the start."""

    def opened(self, user: User) -> None:
        """A session."""
        self._add(user, Count(requests=1))

    def read(self, user: User, tokens: int) -> None:
        """Tokens of a prompt, that are to be computed here."""
        self._add(user, Count(tokens_in=tokens))

    def made(self, user: User, *, tokens: int, seconds: float) -> None:
        """Tokens in whose making this node took part, and the seconds that its device took."""
        busy = round(1000 * seconds) if 0 <= seconds < _LONGEST else 0
        self._add(user, Count(tokens_out=tokens, busy_ms=busy))

    def take(self) -> Mapping[User, Count]:
        """What was counted; counting begins anew."""
        counts, self._counts = self._counts, {}
        return counts

    def put_back(self, counts: Mapping[User, Count]) -> None:
        """These could not be written."""
        for user, count in counts.items():
            self._put(user, count)

    def _add(self, user: User, count: Count) -> None:
        if user[0] != self._own:
            self.total += count
            self._put(user, count)

    def _put(self, user: User, count: Count) -> None:
        self._counts[user] = self._counts.get(user, _NOTHING) + count


_NOTHING = Count()
_LONGEST = 3600.0  # seconds of one span: an engine's clock may be wrong
