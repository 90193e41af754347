"""Renders chat templates as Hugging Face does: sandboxed jinja2 with trimmed blocks.

The sandbox bounds what a template can reach, not what it can burn: it runs only in the text
child, under that process's limits. The names a template may expect are those of
`transformers` (utils/chat_template_utils.py and PreTrainedTokenizerBase.apply_chat_template).
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

# What an expression of a template can raise; RuntimeError is endless recursion.
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
    """`{% generation %}` marks the assistant's words for training; here it changes nothing."""

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
    """Encode JSON without the HTML escapes of jinja2's own `tojson`."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


class ChatTemplate:
    """A compiled template. `special` are the names it may use, such as `bos_token`."""

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
        """Render the conversation as one text. `now`: seconds since 1970, for `strftime_now`.

        Raises TextError: `template-failed` with the template's own words, or `template-limit`.
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
