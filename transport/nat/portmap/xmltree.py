"""A parser for untrusted XML: it returns a small tree and refuses every declaration.

The parser is expat of the standard library (`xml.parsers.expat`). A document type declaration ends
the parsing at once, so a document cannot declare entities: neither external ones nor ones that
expand. The remaining work is bounded by the size of the input, which the caller bounds.
"""

from dataclasses import dataclass, field
from xml.parsers import expat

from .defaults import XML_DEPTH, XML_ELEMENTS


@dataclass(slots=True)
class Element:
    """An element. `name` is without its namespace; `text` is the text before the first child,
    stripped at both ends."""

    name: str
    text: str = ""
    children: list["Element"] = field(default_factory=list)

    def find(self, name: str) -> "Element | None":
        """Return the first child of that name, None if there is none."""
        return next((child for child in self.children if child.name == name), None)

    def value(self, name: str) -> str:
        """Return the text of the first child of that name, "" if there is none."""
        child = self.find(name)
        return child.text if child is not None else ""

    def walk(self) -> "list[Element]":
        """Return this element and all elements below it."""
        found = [self]
        for element in found:  # `found` grows during the loop: children of children follow
            found += element.children
        return found


class _TooMuch(Exception):
    """The document is too large, too deep or declares something."""


class _Builder:
    def __init__(self) -> None:
        self._open: list[Element] = []
        self._count = 0
        self.root: Element | None = None

    def start(self, name: str, attributes: object) -> None:
        self._count += 1
        if self._count > XML_ELEMENTS or len(self._open) >= XML_DEPTH:
            raise _TooMuch
        element = Element(name.rpartition(" ")[2])
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, name: str) -> None:
        element = self._open.pop()
        element.text = element.text.strip()

    def text(self, data: str) -> None:
        if not self._open[-1].children:
            self._open[-1].text += data

    def refuse(self, *_: object) -> int:
        raise _TooMuch


def parse(data: bytes) -> Element | None:
    """Parse a document; return None if it is malformed, too deep, too large or has declarations."""
    builder = _Builder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.EntityDeclHandler = builder.refuse
    parser.ExternalEntityRefHandler = builder.refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, _TooMuch, ValueError, LookupError):  # the last two: bad encodings
        return None
    return builder.root
