"""Text and figures of one answer, from the tokens of all its chains."""

from collections import deque
from collections.abc import Sequence

from ...routing.paths import Hop
from ...text.process import LikelyText, TextDelta, TokenText
from ..generation import (
    Awaited,
    Emit,
    GenerateRequest,
    Model,
    Reason,
    Routed,
    Summary,
)
from ..messages import SampledToken
from .items import Arrived, Pooled


class TokenTexts:
    """The tokens of an answer with the text that each one completed.

    A token is withheld until all of its text is part of the answer, so that no token shows what a
    stop string cuts off.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[TokenText, int]] = deque()  # (token, end of its text)
        self._completed = 0  # characters that all tokens have completed
        self._released = 0  # characters that are part of the answer

    def push(self, token: TokenText) -> None:
        """Append a token."""
        self._completed += len(token.text)
        self._waiting.append((token, self._completed))

    def release(self, characters: int) -> tuple[TokenText, ...]:
        """Return the tokens whose text is complete with `characters` more of the answer."""
        self._released += characters
        released = list[TokenText]()
        while self._waiting and self._waiting[0][1] <= self._released:
            released.append(self._waiting.popleft()[0])
        return tuple(released)


class Answer:
    """The text and the figures of one answer, from the tokens of all its chains.

    `ids` holds the prompt at first and grows with each token. `at_context`: the last allowed token
    fills the context.
    """

    def __init__(
        self,
        ids: list[int],
        model: Model,
        request: GenerateRequest,
        emit: Emit,
        began: float,
        *,
        at_context: bool = False,
    ) -> None:
        self._ids = ids
        self._prompt = len(ids)
        self._hops = 1
        self._model = model
        self._stop = request.stop
        self._emit = emit
        self._began = began
        self._text: list[str] = []
        self._tokens = TokenTexts() if request.logprobs else None
        self._times: list[float] = []
        self._logprobs: list[float] = []
        self._computing = 0.0  # seconds that the stages computed after the first token
        self._between = 0.0  # seconds between the tokens of one chain and of the next
        self._moved = False
        self._reason: Reason = "context" if at_context else "length"

    async def prepare(self) -> None:
        """Create the detokenizer. Must be called before `add`."""
        self._detokenizer = await self._model.text.detokenizer(self._stop)

    @property
    def made(self) -> int:
        """Number of tokens generated so far."""
        return len(self._ids) - self._prompt

    async def begin(self, chain: Sequence[Hop]) -> None:
        """Emit the chain that starts or continues the answer."""
        self._hops = len(chain)
        self._moved = bool(self._times)
        await self._emit(Routed(tuple(chain)))

    async def wait(self, event: Awaited) -> None:
        """Tell the client that the answer waits for a node."""
        await self._emit(event)

    async def add(self, items: Sequence[Arrived | Pooled]) -> bool:
        """Append tokens to the answer and emit their text. Return whether the answer has ended.

        Tokens that arrived together are detokenized together. If the request has stop strings,
        tokens are detokenized one at a time, so that no token after a stop string counts. The same
        applies if it asks for the text of each token.
        """
        arrived = [item for item in items if isinstance(item, Arrived)]
        step = 1 if self._stop or self._tokens is not None else len(arrived)
        for first in range(0, len(arrived), step):
            if await self._add(arrived[first : first + step]):
                return True
        return False

    async def _add(self, arrived: Sequence[Arrived]) -> bool:
        last, fresh = False, list[int]()
        for item in arrived:
            self._measure(item)
            self._ids.append(item.token.token)
            self._logprobs.append(item.token.logprob)
            last = item.token.final
            if item.token.token in self._model.text.info.stop_ids:
                self._reason, last = "stop", True
                break
            fresh.append(item.token.token)
        likely = await self._likely(arrived[0].token) if fresh else ()
        delta = await self._detokenizer.push(*fresh)
        if self._tokens is not None and fresh:
            completed = self._detokenizer.completed
            self._tokens.push(TokenText(completed, arrived[0].token.logprob, likely))
        await self._write(delta.text)
        if delta.stopped:
            self._reason = "stop"
        elif last:
            await self._write(await self._detokenizer.finish())
        return last or delta.stopped

    async def _likely(self, token: SampledToken) -> tuple[LikelyText, ...]:
        """Return the most likely tokens in place of `token`, which is not pushed yet."""
        if not token.top:
            return ()
        texts = await self._detokenizer.texts([each for each, _ in token.top])
        return tuple(
            LikelyText(text, logprob) for text, (_, logprob) in zip(texts, token.top, strict=True)
        )

    def _measure(self, arrived: Arrived) -> None:
        """Add one token to the timing of the answer."""
        if self._moved:
            self._between += arrived.at - self._times[-1]
            self._moved = False
        elif self._times:
            self._computing += arrived.token.seconds
        self._times.append(arrived.at)

    async def _write(self, text: str) -> None:
        tokens = () if self._tokens is None else self._tokens.release(len(text))
        if text or tokens:
            self._text.append(text)
            await self._emit(TextDelta(text, False, tokens))

    def summary(self) -> Summary:
        took = self._times[-1] - self._times[0]
        further = len(self._times) - 1
        on_the_way = max(0.0, took - self._computing - self._between)
        return Summary(
            reason=self._reason,
            prompt_tokens=self._prompt,
            tokens=len(self._times),
            ttft_s=self._times[0] - self._began,
            tokens_per_s=further / took if took > 0 else 0.0,
            hop_ms=1e3 * on_the_way / (further * self._hops) if further else 0.0,
            text="".join(self._text),
            token_ids=tuple(self._ids[self._prompt :]),
            logprobs=tuple(self._logprobs),
        )
