"""The chat form of the tiny model: its template, and training dialogues made from plain text.

The corpus holds no conversations, so short ones are cut from it: the user begins a passage
and the answer continues it, the user names a subject and the answer mentions it, or the user
asks about a name of Python's library and the answer is its docstring.
Each answer ends after a few sentences, which is what teaches the model to stop.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from corpus import Document

BEGIN = "<s>"
END = "</s>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
#: In the order of their token ids, 0 to 3.
SPECIAL_TOKENS = (BEGIN, END, USER, ASSISTANT)

#: The same form as :func:`render`, for programs that use the model.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}"
    "{{ '<|user|>\\n' + message['content'] | trim + eos_token + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|assistant|>\\n' + message['content'] | trim + eos_token + '\\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

TOPIC_REQUESTS = (
    "Tell me about {}.",
    "Write about {}.",
    "Write a verse about {}.",
    "What of {}?",
    "Speak of {}.",
    "{}",
)
NAME_REQUESTS = {
    "function": ("What does {} do?", "Explain {}.", "What is {}?"),
    "class": ("What is {}?", "Explain the class {}.", "What is {} for?"),
    "module": ("What is the module {}?", "What is {} for?", "Explain the module {}."),
}
GO_ON_REQUESTS = ("Go on.", "Tell me more.", "And then?", "What came next?", "Continue.")

WORD = re.compile(r"[A-Za-z]{4,}")
#: A subject must be this frequent in the training text, in occurrences.
TOPIC_RANGE = (12, 800)
MAX_ANSWER_CHARS = 600
MAX_VERSES = 3
#: Length of the part of a passage that the user says, in characters.
CUT_RANGE = (12, 110)


@dataclass(frozen=True)
class Turn:
    """One exchange: what the user says and what the model answers."""

    user: str
    assistant: str


def render(turns: Iterable[Turn]) -> str:
    """Return the chat form of ``turns``, ready to be tokenised without added tokens."""
    body = "".join(
        f"{USER}\n{turn.user.strip()}{END}\n{ASSISTANT}\n{turn.assistant.strip()}{END}\n"
        for turn in turns
    )
    return BEGIN + body


class DialogueMaker:
    """Cuts dialogues out of documents; the same seed gives the same dialogues."""

    def __init__(self, documents: list[Document], seed: int) -> None:
        """Count the words of ``documents``, to tell subjects from common words."""
        self._documents = documents
        self._rng = random.Random(seed)
        self._counts: Counter[str] = Counter()
        for document in documents:
            self._counts.update(WORD.findall(document.text))
        # A long document has more to cut from than a one-line docstring.
        self._weights = [min(len(document.text), 4000) for document in documents]

    def draw(self) -> str:
        """Return one rendered dialogue from a random document."""
        document = self._rng.choices(self._documents, self._weights)[0]
        if document.kind == "chapter":
            return render(self._from_chapter(document.passages))
        return render([self._from_docstring(document)])

    def _from_chapter(self, verses: list[str]) -> list[Turn]:
        """Cut one exchange, or two that follow each other, out of a chapter."""
        start = self._rng.randrange(len(verses))
        stop = start + self._rng.randint(1, MAX_VERSES)
        passage = " ".join(verses[start:stop])
        topic = self._topic(verses[start])
        if topic and self._rng.random() < 0.5:
            turns = [Turn(self._rng.choice(TOPIC_REQUESTS).format(topic), passage)]
        else:
            turns = [self._continuation(passage)]
        if stop < len(verses) and self._rng.random() < 0.25:
            request = self._rng.choice(GO_ON_REQUESTS)
            more = " ".join(verses[stop : stop + self._rng.randint(1, MAX_VERSES)])
            turns.append(Turn(request, more))
        return turns

    def _from_docstring(self, document: Document) -> Turn:
        """Ask for the docstring by its name, or begin it and let the answer go on."""
        text = self._shorten(document.passages)
        if self._rng.random() < 0.6 or len(text) < 2 * CUT_RANGE[0]:
            request = self._rng.choice(NAME_REQUESTS[document.kind])
            return Turn(request.format(self._short_name(document.name)), text)
        return self._continuation(text)

    def _short_name(self, name: str) -> str:
        """Drop the first parts of a long dotted name, as people do when they ask."""
        parts = name.split(".")
        return ".".join(parts[-self._rng.randint(1, len(parts)) :])

    def _shorten(self, paragraphs: list[str]) -> str:
        """Keep whole paragraphs from the front, as many as an answer may hold."""
        text = paragraphs[0]
        for paragraph in paragraphs[1:]:
            if len(text) + len(paragraph) > MAX_ANSWER_CHARS:
                break
            text += "\n\n" + paragraph
        return text

    def _topic(self, verse: str) -> str:
        """Return one of the three rarest words of ``verse`` that are frequent enough."""
        least, most = TOPIC_RANGE
        words = sorted(
            {word for word in WORD.findall(verse) if least <= self._counts[word] <= most},
            key=lambda word: (self._counts[word], word),
        )
        return self._rng.choice(words[:3]) if words else ""

    def _continuation(self, passage: str) -> Turn:
        """Cut ``passage`` in two near its beginning, mostly at the end of a clause."""
        low, high = CUT_RANGE
        limit = min(high, len(passage) - low)
        ends = [m.end() for m in re.finditer(r"[,;:.!?](?= )", passage) if low <= m.end() <= limit]
        if not ends or self._rng.random() < 0.35:
            ends = [m.start() for m in re.finditer(r"\s", passage) if low <= m.start() <= limit]
        if not ends:
            ends = [len(passage) // 2]
        cut = self._rng.choice(ends)
        return Turn(passage[:cut], passage[cut:])
