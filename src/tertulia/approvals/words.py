"""The words of a command: as the program gets them, where that can be known, and as a person can see them."""

import re
import shlex

from .grammar import Node

Words = tuple[str | None, ...]
"""None where only the run will tell."""

ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which the shell and the grammar read differently."""

INVISIBLE = re.compile(
    "[\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800"
    "\u3000\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Spaces that are none to the shell, and what is not seen, or turns the direction of a text."""

MAX_CLUSTER = 4  # options that stand together before the value of the last one

_EXPANDS = re.compile(r"[*?\[]|(?:^|[=:])~|\{.*(?:,|\.\.)", re.DOTALL)
_METACHARACTERS = re.compile(r"[\s;&|<>()$`]")


def is_odd(text: str) -> bool:
    return ODD.search(text) is not None or INVISIBLE.search(text) is not None


def shown(text: str) -> str:
    """The text with what would not be seen, or seen as something else, written out."""
    return "".join(f"\\u{{{ord(char):x}}}" if is_odd(char) else char for char in text)


def looks_alike(text: str) -> bool:
    """Whether a word mixes letters of ASCII with others, which may look like them."""
    return any(_is_mixed([char for char in word if char.isalpha()]) for word in text.split())


def _is_mixed(letters: list[str]) -> bool:
    return len({char.isascii() for char in letters}) > 1


def split(text: str) -> list[str] | None:
    """As the standard library reads it: a second opinion."""
    try:
        return shlex.split(text.replace("\\\n", ""))
    except ValueError:
        return None


def is_command_text(word: str) -> bool:
    """Whether a word could be a command line of its own."""
    return _METACHARACTERS.search(word) is not None


def texts_in(word: str) -> set[str]:
    """What of a word could be a command line of its own: all of it, or what stands behind `=`, an option, a mark."""
    found = {word, word.partition("=")[2]}
    if word.startswith("-") and not word.startswith("--"):
        found.update(word[n:] for n in range(2, 2 + MAX_CLUSTER))
    return {text for text in (each.lstrip("!+|@") for each in found) if is_command_text(text)}


def word_of(node: Node) -> str | None:
    """What a node of the grammar's tree is to the program, or None."""
    text = node.text
    if node.type in ("word", "number"):
        bare = text.replace("\\\n", "")
        return None if _EXPANDS.search(re.sub(r"\\.", "", bare)) else re.sub(r"\\(.)", r"\1", bare)
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "string":
        if any(child.type not in ('"', "string_content", "$") for child in node.children):
            return None
        return re.sub(r'\\([\\"$`])', r"\1", text[1:-1].replace("\\\n", ""))
    if node.type == "concatenation":
        if _EXPANDS.search(re.sub(r"\\.", "", text)):
            return None
        pieces = [word_of(child) for child in node.children]
        known = [piece for piece in pieces if piece is not None]
        return "".join(known) if len(known) == len(pieces) else None
    if node.type == "variable_assignment":
        return None if is_command_text(text) or _EXPANDS.search(text) else text
    return None
