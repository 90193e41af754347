"""`shoal api`: shows how programs use this node through its OpenAI-compatible HTTP API."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .. import render
from ..options import data_option, example, json_option

if TYPE_CHECKING:
    from ...node.control.messages.api import ApiView

EMBEDDED: Final = "tiny"
SHOWN: Final = """\
base URL  {url}
token     {token}

curl {url}/chat/completions \\
  -H "Authorization: Bearer {token}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

# Python: pip install openai
from openai import OpenAI

client = OpenAI(
    base_url="{url}",
    api_key="{token}",
)
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Hello"}}],
)
print(answer.choices[0].message.content)"""


@click.command(
    short_help="Show how programs use this node.",
    epilog=example("shoal api", "shoal api --json"),
)
@data_option
@json_option
def api(data: Path, as_json: bool) -> None:
    """Show the base URL and the token of the HTTP API, with examples to paste.

    Programs on this computer that speak to OpenAI can use the swarm's models in this way. A
    program with the token can use the node, so keep it secret. The daemon must be running.
    """
    from ...node.control.messages.api import GetApi
    from ..client import request

    answer = request(data, GetApi())
    click.echo(render.as_json(answer) if as_json else report(answer))


def report(answer: "ApiView") -> str:
    """Format the URL, the token and the examples."""
    model = render.safe(answer.model or EMBEDDED)
    return SHOWN.format(url=answer.url, token=answer.token, model=model)
