"""Renders chat templates as Hugging Face does: with sandboxed jinja2 and trimmed blocks.

The sandbox limits which objects a template can access, but not how much time and memory it uses.
Templates are therefore rendered only in the text child, which has such limits. The names that a
template may use are those of `transformers` (utils/chat_template_utils.py and
PreTrainedTokenizerBase.apply_chat_template).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import jinja2
import jinja2.debug  # imported by jinja2 only at a template's first error; files are closed then
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..defaults import TEXT_BYTES
from ..errors import TextError

# Exceptions that an expression of a template can raise. RecursionError is a RuntimeError.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class _Generation(jinja2.ext.Extension):
    """Extension for `{% generation %}`, which marks the assistant's text for training. It has no
    effect."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode a value as JSON without the HTML escapes of jinja2's `tojson` filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    """Fail with a message, for templates that reject a conversation."""
    raise jinja2.TemplateError(str(message))


class ChatTemplate:
    """Compiled chat template. `special` maps names that it may use, such as `bos_token`, to their
    values."""

    def __init__(self, source: str, special: Mapping[str, object]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        self._special = dict(special)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise _failed(error) from None

    def render(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool, now: float
    ) -> str:
        """Render a conversation as one text. `now` is the Unix time in seconds, for `strftime_now`.

        Raises TextError `template-failed` if the template fails, with its message, and
        `template-limit` if the text is too long.
        """
        stamp = datetime.fromtimestamp(now, UTC)
        pieces = self._template.generate(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            strftime_now=stamp.strftime,
            **self._special,
        )
        try:
            return _bounded(pieces)
        except _TEMPLATE_ERRORS as error:
            raise _failed(error) from None


def _bounded(pieces: Iterable[str]) -> str:
    """Concatenate the pieces. Raises TextError `template-limit` beyond TEXT_BYTES characters."""
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > TEXT_BYTES:
            raise TextError(
                "template-limit", f"the chat template writes over {TEXT_BYTES} characters"
            )
        kept.append(piece)
    return "".join(kept)


def _failed(error: Exception) -> TextError:
    return TextError("template-failed", f"the chat template fails: {error}")
