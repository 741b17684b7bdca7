"""A second reading of a command line, letter by letter as bash takes it, of a small part of its language.

It shares nothing with the grammar: where one command ends and the next begins, what is a comment and what a word, it
finds by itself. What it does not know for certain it does not read at all.
"""

import re

import msgspec

MAX_NESTED = 10

_ORDINARY = re.compile(r"""[^\s\\'"$`;&|<>(){}*?\[~]+""")
_QUOTED = re.compile(r'[^"\\$`]+')
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[@*#?$!0-9-]")
_BLANK = re.compile(r"(?:[ \t]+(?:\\\n)*)+")
_COMMENT = re.compile(r"#[^\n]*")
_JOINT = re.compile(r"&&|\|\||\|&|;|&(?!>)|\||\n")
_REDIRECTION = re.compile(r"(?:\d?(?:>&|>>|>|<)|&>>|&>)(?![<>&(|])[ \t]*")
_TARGET = re.compile(r"[^\s;&|<>()]*")
_ENDS = frozenset(" \t\n;&|<>)")
_PLAIN_BEHIND_DOLLAR = frozenset(" \t\n;&|<>)/.,:%^+=~]}")
"""What makes a `$` before it one letter like any other; the end of the text and, in quotes, a quote do so too."""


class Lexed(msgspec.Struct, frozen=True, kw_only=True):
    """The words of each command, in the order of their beginnings, None where the run will tell; what joins them."""

    commands: tuple[tuple[str | None, ...], ...]
    joints: frozenset[str]


class _Unclear(Exception):
    pass


def lex(text: str) -> Lexed | None:
    """The commands of a line, or None when it has anything that is not known for certain."""
    reader = _Reader(text)
    try:
        reader.line(0)
    except _Unclear:
        return None
    return Lexed(commands=tuple(tuple(each) for each in reader.commands), joints=frozenset(reader.joints))


class _Reader:
    def __init__(self, text: str) -> None:
        self.commands: list[list[str | None]] = []
        self.joints: set[str] = set()
        self._text = text
        self._at = 0

    def line(self, depth: int) -> None:
        """Up to the end, or to the bracket that closes a substitution."""
        words: list[str | None] | None = None
        while True:
            self._take(_BLANK)
            self._take(_COMMENT)
            char = self._next()
            if char in ("", ")"):
                if (char == ")") != (depth > 0):
                    raise _Unclear
                self._at += len(char)
                return
            joint = self._take(_JOINT)
            if joint:
                if words is None and joint != "\n":
                    raise _Unclear
                self.joints.add(joint)
                words = None
            elif words is None and self._text[self._at : self._at + 2] in ("! ", "!\t"):
                self.joints.add("!")
                self._at += 1
            elif not self._redirection(words is not None):
                if words is None:
                    words = []
                    self.commands.append(words)
                words.append(self._word(depth))

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def _redirection(self, allowed: bool) -> bool:
        """To nowhere, or to another of the standard streams, behind the name of the program."""
        kind = self._take(_REDIRECTION).strip()
        if not kind:
            return False
        target = self._take(_TARGET)
        if not allowed or target not in (("1", "2") if kind.endswith(">&") else ("/dev/null",)):
            raise _Unclear
        return True

    def _word(self, depth: int) -> str | None:
        start, pieces, known = self._at, [""], True
        while (char := self._next()) not in _ENDS and char:
            piece: str | None = self._take(_ORDINARY)
            if not piece:
                self._at += 1
                piece = self._special(char, start, depth)
            known = known and piece is not None
            pieces.append(piece or "")
        raw = self._text[start : self._at]
        if not raw or (char in ("<", ">") and (raw.isdecimal() or raw.startswith("{"))):
            raise _Unclear  # what stands before a redirection may be a part of it
        if "{" in raw and ("," in raw or ".." in raw):
            return None
        return "".join(pieces) if known else None

    def _special(self, char: str, start: int, depth: int) -> str | None:
        """What begins with this letter, which has been taken, is to the program."""
        if char == "\\":
            letter = self._next()
            if letter in ("", "\n"):
                raise _Unclear
            self._at += 1
            return letter
        if char == "'":
            end = self._text.find("'", self._at)
            if end < 0:
                raise _Unclear
            piece, self._at = self._text[self._at : end], end + 1
            return piece
        if char == '"':
            return self._quoted(depth)
        if char == "$":
            return self._dollar(depth, quoted=False)
        if char in "*?[":
            return None
        if char == "~":
            before = self._text[self._at - 2 : self._at - 1]
            return None if self._at - 1 == start or before in ("=", ":") else char
        if char in "{}":
            return char
        raise _Unclear

    def _quoted(self, depth: int) -> str | None:
        pieces, known = [""], True
        while True:
            pieces.append(self._take(_QUOTED))
            char = self._next()
            self._at += 1
            if char == '"':
                return "".join(pieces) if known else None
            if char == "\\" and self._next():
                letter = self._next()
                self._at += 1
                pieces.append("" if letter == "\n" else letter if letter in '$`"\\' else char + letter)
            elif char == "$":
                piece = self._dollar(depth, quoted=True)
                known = known and piece is not None
                pieces.append(piece or "")
            else:
                raise _Unclear

    def _dollar(self, depth: int, quoted: bool) -> str | None:
        char = self._next()
        if char == "(" and self._text[self._at : self._at + 2] != "((" and depth < MAX_NESTED:
            self._at += 1
            self.line(depth + 1)
            return None
        if self._take(_VARIABLE):
            return None
        if not char or char in _PLAIN_BEHIND_DOLLAR or (quoted and char in "\"'"):
            return "$"
        raise _Unclear
