"""Templates render as Hugging Face renders them."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from shoal.tasks.errors import TextError
from shoal.tasks.text.template import ChatTemplate

TURNS = [{"role": "user", "content": "<b>Hé</b> \n"}, {"role": "assistant", "content": "Yes"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n  {% if m.role == 'user' %}\n    [{{ m.content | trim }}]\n"
        "  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}A:{% endif %}",
        "{{ messages | tojson }} {{ messages | tojson(indent=2) }} {{ bos_token }}",
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }} {{ 'none' if tools is none else 'some' }} {{ documents }}",
        "{% macro say(x) %}{{ x['content'] }}{% endmacro %}{{ say(messages[1]) }}",
    ],
)
@pytest.mark.parametrize("prompt", [True, False])
def test_it_renders_what_transformers_renders(source: str, prompt: bool) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = ChatTemplate(source, special).render(TURNS, add_generation_prompt=prompt, now=0)
    (theirs,), _ = render_jinja_template(
        [TURNS], chat_template=source, add_generation_prompt=prompt, **special
    )
    assert ours == theirs


def test_the_date_is_the_callers() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {})
    assert template.render([], add_generation_prompt=True, now=1e9) == "09 Sep 2001"


def test_its_own_words_reach_the_user() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TextError, match="the chat template fails: roles must alternate"):
        template.render([], add_generation_prompt=True, now=0)
