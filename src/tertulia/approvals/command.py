"""A shell command, and what it would run: read by a grammar, and believed only where nothing is left open.

bash and the grammar differ in places. So a reading counts for the command only where every construct is a simple one
and a second reading finds the same words; what is found otherwise counts only against it.
"""

import functools
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from .grammar import Node, parse
from .programs import STATE, base_name, command_path, is_fed, names, wraps
from .words import Words, is_command_text, is_odd, split, word_of

MAX_LENGTH = 20_000
MAX_DEPTH = 4
MAX_WORDS = 100  # of a command that may start them

_SIMPLE = names("""
    program list pipeline command command_name word number string string_content raw_string concatenation comment
    redirected_statement file_redirect file_descriptor negated_command simple_expansion special_variable_name
    variable_name command_substitution && || ; | |& & ! $ $( ) "
""") | {"\n"}
"""What a tree may hold to be believed, but for redirections, which are looked at one by one."""

_JOINED = re.compile(r"(?<![ \t])\\\n")
"""A line that goes on inside a word: the shell joins it, the grammar parts it."""

_RESERVED = names(
    "! [[ ]] case coproc do done elif else esac fi for function if in select then time until while { }"
)
_NAME = re.compile(r"[\w./+:@,%-]+", re.ASCII)
"""What a program is called, for a reading to be believed: no word of the grammar, nothing that looks like another."""

_ARGUMENTS = names("""
    word number string raw_string concatenation simple_expansion expansion command_substitution ansi_c_string regex
    translated_string process_substitution arithmetic_expansion brace_expression extglob_pattern variable_assignment
""")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One command of a command line.

    `plain`: its words, and nothing besides, say what it does. `at`: the folder below the first one that a `cd` has
    chosen for it; None when the same words may mean anything by now.
    """

    words: Words
    text: str
    plain: bool = False
    at: str | None = None

    @property
    def known(self) -> tuple[str, ...] | None:
        """Its words, when all of them are known."""
        found = tuple(word for word in self.words if word is not None)
        return found if len(found) == len(self.words) else None

    @property
    def kind(self) -> Literal["plain", "wrapper", "other"]:
        """Whether it starts nothing else, starts what it is told to, or that is not known."""
        program, words = self.words[0], self.known
        if program is None or not _is_name(program) or wraps(program):
            return "wrapper"
        return "plain" if words is not None and command_path(words) is not None else "other"

    @property
    def path(self) -> tuple[str, ...] | None:
        """Program and subcommand, when they say it all."""
        words = self.known
        return command_path(words) if self.plain and words and self.at is not None else None

    @property
    def open(self) -> bool:
        """Whether only the run will tell what it starts."""
        if self.kind == "plain":
            return False
        if self.kind == "other":
            given = (self.words[n:] for n in range(1, len(self.words)) if wraps(self.words[n] or ""))
            return len(self.words) > MAX_WORDS or any(Part(words=w, text=self.text).open for w in given)
        words = self.known
        if words is None or len(words) > MAX_WORDS or not _is_name(words[0]) or is_fed(words):
            return True
        return not all(read(text).sure for text in self._texts())

    def started(self, depth: int = 0) -> Iterator["Part"]:
        """What it may start: in its words, or in a text that is one of them."""
        for n in range(1, min(len(self.words), MAX_WORDS)):
            if self.words[n] is not None or self.kind == "wrapper":
                yield Part(words=self.words[n:], text=self.text)
        if depth >= MAX_DEPTH:
            return
        for part in (part for text in self._texts() for part in read(text).parts):
            yield part
            if part.kind != "plain":
                yield from part.started(depth + 1)

    def _texts(self) -> list[str]:
        """Words that may be command lines of their own, and what `eval` makes of them all."""
        known = [word for word in self.words[1:] if word is not None]
        texts = [word for word in known if is_command_text(word)]
        return [*texts, " ".join(known)] if self.words[0] == "eval" else texts


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """`simple`: every construct of it is one that is understood; else its parts are only those that were found."""

    text: str
    parts: tuple[Part, ...] = ()
    simple: bool = False

    @property
    def sure(self) -> bool:
        """Whether it is known what programs it starts with what words."""
        return self.simple and bool(self.parts) and not any(part.open for part in self.parts)


@functools.lru_cache(maxsize=256)
def read(text: str) -> Command:
    """What this command line would run."""
    text = text.strip(" \t\n")
    if not text or len(text) > MAX_LENGTH or is_odd(text):
        return Command(text=text)
    nodes, wrong = parse(text)
    simple = not wrong and all(_is_simple(node) for node in nodes)
    commands = [node for node in nodes if node.type in ("command", "declaration_command", "unset_command")]
    parts = [_part(node, simple) for node in sorted(commands, key=lambda n: (n.start_byte, -n.end_byte))]
    simple = simple and all(part.plain for part in parts) and _JOINED.search(text) is None
    return Command(text=text, parts=tuple(_placed(nodes, parts)), simple=simple)


def _is_name(program: str) -> bool:
    return _NAME.fullmatch(program) is not None and program not in _RESERVED


def _is_simple(node: Node) -> bool:
    if node.type == "file_redirect":
        return _is_harmless(node)
    in_redirect = node.parent is not None and node.parent.type == "file_redirect"
    return node.type in _SIMPLE or in_redirect


def _is_harmless(redirect: Node) -> bool:
    """To nowhere, or from one of the standard streams to another. Any other reads or writes a file."""
    target = redirect.children[-1].text
    return target == "/dev/null" or (target in ("1", "2") and redirect.children[-2].type == ">&")


def _part(node: Node, simple: bool) -> Part:
    words: list[str | None] = []
    plain = simple
    for child in node.children:
        if child.type == "command_name":
            words.append(word_of(child.children[0]))
        elif child.type in _ARGUMENTS and (words or child.type != "variable_assignment"):
            words.append(word_of(child))
        elif not child.is_named and not words and node.type != "command":
            words.append(child.text)  # export, declare, unset
        else:
            plain = False
    text: str = node.text
    known = [word for word in words if word is not None]
    plain = (
        plain
        and bool(words)
        and (words[0] is None or _is_name(words[0]))
        and (len(known) < len(words) or split(text) == known)
    )
    return Part(words=tuple(words) or (None,), text=text, plain=plain, at="")


def _placed(nodes: list[Node], parts: list[Part]) -> Iterator[Part]:
    """The parts, each with the folder that it runs in. A `cd` is followed only along `&&`, into a folder below."""
    types = {node.type for node in nodes}
    followed = not types & {"||", ";", "&", "\n", "|", "|&", "!", "$(", "subshell"}
    at: str | None = "" if followed or not any(part.words[0] in STATE for part in parts) else None
    for part in parts:
        yield msgspec.structs.replace(part, at=at if len(parts) > 1 else "")
        if part.words[0] in STATE and at is not None:
            at = _below(at, part)


def _below(at: str, part: Part) -> str | None:
    words = part.known
    if words is None or words[0] != "cd" or len(words) != 2:
        return None
    folder = words[1]
    if folder.startswith(("/", "-")) or ".." in folder.split("/"):
        return None
    return "/".join(piece for piece in (*at.split("/"), *folder.split("/")) if piece not in ("", "."))


def programs(text: str) -> Iterator[str]:
    """Everything in a text that could name a program, quotes and joints taken out."""
    bare = re.sub(r"\\\n|[\\'\"]", "", text)
    return (base_name(token) for token in re.findall(r"[^\s/;&|<>(){}$`=,:]+", bare))
