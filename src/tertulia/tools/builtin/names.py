"""Patterns for names of files, matched in one pass over the name: no pattern takes longer for being wicked.

`*` and `?` stay within a folder, `**` is any number of folders, `[a-z]` and `[!a-z]` are one character.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable

from ...records.errors import InvalidInput

LONGEST = 1000
"""Characters of a pattern."""

ALTERNATIVES = 100
"""What the braces of a pattern may stand for."""

STAR, FOLDERS, ANY, NONE = "star", "folders", "any", "none"
POSIX = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "xdigit": "0-9a-fA-F",
    "space": " \t-\r", "blank": " \t", "punct": "!-.:-@[-`{-~", "print": " -~", "graph": "!-~",
}  # fmt: skip


class Choice:
    """One character of those between brackets; with `!` or `^` in front, any other."""

    def __init__(self, text: str, escapes: bool) -> None:
        self._but = text[:1] in ("!", "^")
        self._ranges: list[tuple[str, str]] = []
        text = re.sub(r"\[:([a-z]+):\]", lambda found: POSIX.get(found[1], ""), text[self._but :])
        letters = [letter[-1:] for letter in re.findall(r"\\.|." if escapes else r".", text, re.DOTALL)]
        while letters:
            last = 2 if len(letters) > 2 and letters[1] == "-" else 0
            self._ranges.append((letters[0], letters[last]))
            del letters[: last + 1]

    def __contains__(self, char: str) -> bool:
        return char != "/" and any(low <= char <= high for low, high in self._ranges) is not self._but


Token = str | Choice


class Pattern:
    """For a relative path. The bits of `state` say how much of the pattern the characters so far may have filled.

    A star that has been reached stays so, and what stands behind it is reached too, as it may be empty.
    """

    def __init__(self, text: str, *, escapes: bool = False) -> None:
        self._tokens = _tokens(text, escapes)
        self._stars = _bits(token == STAR for token in self._tokens)
        self._folders = _bits(token == FOLDERS for token in self._tokens)
        self._known: dict[str, int] = {}
        self._plain = _plain(self._tokens)
        self._ending = _plain(self._tokens[1:]) if self._tokens[:1] == [STAR] else None

    def fits(self, path: str) -> bool:
        if self._plain is not None:
            return path == self._plain
        if self._ending is not None and "/" not in path:
            return path.endswith(self._ending)
        state = self._opened(1, "/")
        for char in path:
            taking = self._known.get(char)
            if taking is None:
                taking = self._known[char] = _bits(_takes(token, char) for token in self._tokens)
            staying = self._folders if char == "/" else self._folders | self._stars
            state = self._opened((state & taking) << 1 | state & staying, char)
        return bool(state >> len(self._tokens))

    def _opened(self, state: int, behind: str) -> int:
        """With what is reached because something may be empty: folders only where one begins."""
        if behind == "/":
            state |= (state & self._folders) << 1
        return state | (state & self._stars) << 1


def named(pattern: str) -> Callable[[str], bool]:
    """Which relative paths a pattern means; one without a slash is about names alone. `{a,b}` is either."""
    if not pattern.strip("/"):
        raise InvalidInput("the pattern is empty", hint="for all files: *")
    if len(pattern) > LONGEST:
        raise InvalidInput(f"the pattern is longer than {LONGEST} characters")
    pattern = pattern.removeprefix("./").lstrip("/")
    pieces = [
        piece[1:-1].split(",") if piece[0] == "{" and len(piece) > 1 else [piece]
        for piece in re.findall(r"\{[^{}]*\}|.", pattern, re.DOTALL)
    ]
    if math.prod(map(len, pieces)) > ALTERNATIVES:
        raise InvalidInput(f"the braces stand for more than {ALTERNATIVES} patterns", hint="search twice")
    patterns = [Pattern("".join(each)) for each in itertools.product(*pieces)]
    if "/" in pattern:
        return lambda path: any(each.fits(path) for each in patterns)
    return lambda path: any(each.fits(path.rpartition("/")[2]) for each in patterns)


def _tokens(text: str, escapes: bool) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        char, at = text[at], at + 1
        if char == "*":
            end = next((n for n in range(at, len(text)) if text[n] != "*"), len(text))
            at = _star(tokens, text, at - 1, end)
        elif char == "?":
            tokens.append(ANY)
        elif char == "[" and (end := _closing(text, at, escapes)):
            tokens.append(Choice(text[at:end], escapes))
            at = end + 1
        elif char == "\\" and escapes:
            tokens.append(text[at : at + 1] or NONE)
            at += 1
        else:
            tokens.append(NONE if char == "[" and escapes else char)
    return tokens


def _star(tokens: list[Token], text: str, start: int, end: int) -> int:
    """Adjacent ones are one. Where to go on."""
    if end - start > 1 and text[start - 1 : start] in ("", "/") and text[end : end + 1] in ("", "/"):
        if tokens[-1:] != [FOLDERS]:
            tokens.append(FOLDERS)
        if end == len(text):
            tokens.append(STAR)
        return end + 1
    tokens.append(STAR)
    return end


def _closing(text: str, at: int, escapes: bool) -> int:
    """Where the bracket is that closes this choice; 0 where none does. One in the first place is a character.

    To a shell a name ends at a slash; to git (`escapes`) the choice does not.
    """
    first = end = at + (text[at : at + 1] in ("!", "^"))
    while end < len(text) and (escapes or text[end] != "/"):
        if text[end] == "]" and end > first:
            return end
        if text.startswith("[:", end) and (close := text.find(":]", end + 2)) > 0:
            end = close + 2
        else:
            end += 2 if escapes and text[end] == "\\" else 1
    return 0


def _takes(token: Token, char: str) -> bool:
    if isinstance(token, Choice):
        return char in token
    return token == char or (token == ANY and char != "/")


def _plain(tokens: list[Token]) -> str | None:
    letters = [token for token in tokens if isinstance(token, str) and len(token) == 1]
    return "".join(letters) if len(letters) == len(tokens) else None


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << place for place, flag in enumerate(flags) if flag)
