"""Rules: patterns over the words of commands. What they deny is never allowed."""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

from ..records.errors import ConfigError
from .command import Command, Part, programs
from .programs import base_name, wraps
from .words import Words, split

Decision = Literal["allow", "ask", "deny"]
Match = Literal["yes", "maybe", "no"]

_LONG = {"recursive": "r", "force": "f"}


class Pattern:
    """The words of a command; `*` inside one stands for any characters, as the last one for any words, or none."""

    def __init__(self, text: object) -> None:
        words = split(text) if isinstance(text, str) else None
        if not words or not isinstance(text, str):
            raise ConfigError(f"{text!r} is no rule", hint="a command, such as 'git status' or 'ls *'")
        self.text = text
        self.open = words[-1] == "*"
        self.words = tuple(words[:-1] if self.open else words)

    def covers(self, words: Words) -> bool:
        """Whether these words, in this order, are what was meant: for what is allowed."""
        if len(words) < len(self.words) or (len(words) > len(self.words) and not self.open):
            return False
        return all(
            word is not None and fnmatchcase(word, wanted)
            for word, wanted in zip(words, self.words, strict=False)
        )

    def catches(self, words: Words) -> Match:
        """Whether these words may do what was meant: options anywhere, together or apart, the program anywhere."""
        if not self.words:
            return "yes"
        if words[0] is None:
            return "maybe"
        name = base_name(words[0])
        if self._dashed is not None and fnmatchcase(name, self._dashed):
            words = (self.words[0], self.words[1], *words[1:])
        elif not fnmatchcase(name, self._program):
            return "no"
        rest, unknown = [word for word in words[1:] if word is not None], None in words[1:]
        if self._wants(rest):
            return "yes"
        return "maybe" if unknown else "no"

    def names(self, program: str) -> bool:
        """Whether it is the program meant; one that may be any says nothing by its name."""
        dashed = self._dashed is not None and fnmatchcase(program, self._dashed)
        return self._program != "*" and (dashed or fnmatchcase(program, self._program))

    @cached_property
    def _program(self) -> str:
        return base_name(self.words[0]) if self.words else "*"

    @cached_property
    def _dashed(self) -> str | None:
        """Program and subcommand as one program, such as `git-push`."""
        if len(self.words) < 2 or self._program == "*" or not re.match(r"\w", self.words[1]):
            return None
        return f"{self._program}-{self.words[1].casefold()}"

    def _wants(self, words: list[str]) -> bool:
        letters, long, plain = _options(words)
        need_letters, need_long, need_plain = self._wanted
        if not need_letters <= letters or not all(any(fnmatchcase(w, n) for w in long) for n in need_long):
            return False
        starts = range(len(plain) - len(need_plain) + 1) if words[:1] and words[0].startswith("-") else (0,)
        return any(
            len(plain) - start >= len(need_plain)
            and all(fnmatchcase(w, n) for w, n in zip(plain[start:], need_plain, strict=False))
            and (self.open or len(plain) - start == len(need_plain))
            for start in starts
        )

    @cached_property
    def _wanted(self) -> tuple[frozenset[str], list[str], list[str]]:
        return _options(list(self.words[1:]))


def _options(words: list[str]) -> tuple[frozenset[str], list[str], list[str]]:
    """The letters of short options in any case, the long options, and the other words."""
    letters: set[str] = set()
    long: list[str] = []
    plain: list[str] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name = word[2:].partition("=")[0]
            short = next((_LONG[each] for each in _LONG if name and each.startswith(name)), None)
            if short is not None:
                letters.add(short)
            else:
                long.append(word)
        elif word.startswith("-") and len(word) > 1 and not re.search(r"[*?\[]", word):
            letters.update(word[1:].casefold())
        elif word != "--":
            plain.append(word)
    return frozenset(letters), long, plain


class Rules:
    """`deny` beats `ask`, which beats `allow`. In a compound command the weakest part decides."""

    def __init__(
        self, allow: Sequence[str] = (), ask: Sequence[str] = (), deny: Sequence[str] = ()
    ) -> None:  # fmt: skip
        for given in (allow, ask, deny):
            if not isinstance(given, list | tuple):
                raise ConfigError(f"{given!r} are no rules", hint="a list of commands, such as ['ls *']")
        self.allow = tuple(Pattern(each) for each in allow)
        self.ask = tuple(Pattern(each) for each in ask)
        self.deny = tuple(Pattern(each) for each in deny)

    def __bool__(self) -> bool:
        return bool(self.allow or self.ask or self.deny)

    def denies(self, command: Command) -> str | None:
        """The rule that denies it, when one surely does."""
        for part in command.parts:
            wraps_it = part.words[0] is not None and wraps(part.words[0])
            for each in (part, *(part.started() if wraps_it else ())):
                for pattern in self.deny:
                    if pattern.catches(each.words) == "yes":
                        return pattern.text
        return None

    def holds_back(self, command: Command) -> bool:
        """Whether a part of it is, or may be, what a rule denies or asks for; then nothing but a person allows it."""
        patterns = (*self.deny, *self.ask)
        if not patterns:
            return False
        if not command.sure:
            return True
        if any(pattern.names(name) for name in _mentioned(command) for pattern in patterns):
            return True
        return any(
            pattern.catches(each.words) != "no"
            for part in command.parts
            for each in (part, *(part.started() if part.kind != "plain" else ()))
            for pattern in patterns
        )

    def allows(self, part: Part) -> bool:
        """Whether a rule names this part as it stands."""
        if not part.plain or part.open or part.at is None:
            return False
        if part.at and "/" in (part.words[0] or "/"):
            return False  # the same name in another folder
        return any(pattern.covers(part.words) for pattern in self.allow)


def _mentioned(command: Command) -> Iterator[str]:
    """What could name a program where one may be started: in the words of an unknown one; with a wrapper, anywhere."""
    if any(part.kind == "wrapper" for part in command.parts):
        yield from programs(command.text)
    for part in command.parts:
        if part.kind == "other":
            yield from list(programs(part.text))[1:]
