"""Parser for untrusted XML, which returns a small tree of elements.

It uses expat (`xml.parsers.expat` of the standard library). A document with a document type
declaration is rejected at once, so a document cannot declare entities: neither external entities,
nor entities that expand to huge texts. The remaining work is proportional to the size of the
document, which the caller must limit.
"""

from dataclasses import dataclass, field
from xml.parsers import expat

from .defaults import XML_DEPTH, XML_ELEMENTS


@dataclass(slots=True)
class Element:
    """An XML element."""

    name: str  # without its namespace
    text: str = ""  # the text before the first child, without white space at both ends
    children: list["Element"] = field(default_factory=list)

    def find(self, name: str) -> "Element | None":
        """Return the first child with this name, or None."""
        return next((child for child in self.children if child.name == name), None)

    def value(self, name: str) -> str:
        """Return the text of the first child with this name, or "" if there is no such child."""
        child = self.find(name)
        return child.text if child is not None else ""

    def walk(self) -> "list[Element]":
        """Return this element and all its descendants."""
        found = [self]
        for element in found:  # `found` grows during the loop, so grandchildren follow
            found += element.children
        return found


class _TooMuch(Exception):
    """Raised if a document has too many elements, is nested too deeply, or has declarations."""


class _Builder:
    """Builder of the tree from the events of expat, which calls its methods."""

    def __init__(self) -> None:
        self._open: list[Element] = []
        self._count = 0
        self.root: Element | None = None

    def start(self, name: str, attributes: object) -> None:
        """Append a new element to the open one."""
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
        """Close the open element."""
        element = self._open.pop()
        element.text = element.text.strip()

    def text(self, data: str) -> None:
        """Append text to the open element, if it has no children yet."""
        if not self._open[-1].children:
            self._open[-1].text += data

    def refuse(self, *_: object) -> int:
        """Raise _TooMuch, because the document has a declaration."""
        raise _TooMuch


def parse(data: bytes) -> Element | None:
    """Parse a document, and return its root element.

    Returns None if the document is malformed, is nested too deeply, has too many elements, or has
    declarations.
    """
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
    except (expat.ExpatError, _TooMuch, ValueError, LookupError):  # the last two: invalid encodings
        return None
    return builder.root
