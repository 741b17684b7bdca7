"""A shell command, and what it would run: read by a grammar, and believed only where nothing is left open.

bash and the grammar differ in places. So a reading counts for the command only where every construct is a simple one
and a second reading of the whole line finds the same commands of the same words; what either finds otherwise counts
only against it.
"""

import functools
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from .grammar import Node, parse
from .lexer import Lexed, lex
from .programs import EXTERNAL, base_name, command_path, known_as, names, wraps
from .starts import changes, is_plain_edit, is_programmed, text_of, told
from .words import MAX_CLUSTER, Words, is_odd, texts_in, word_of

MAX_LENGTH = 20_000
MAX_DEPTH = 4
MAX_WORDS = 100  # of a command that may start them
MAX_STARTERS = 20  # names in it of programs that start others: each may be a step deeper

_SIMPLE = names("""
    program list pipeline command command_name word number string string_content raw_string concatenation comment
    redirected_statement file_redirect file_descriptor negated_command simple_expansion special_variable_name
    variable_name command_substitution && || ; | |& & ! $ $( ) "
""") | {"\n"}
"""What a tree may hold to be believed, but for redirections, which are looked at one by one."""

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
    chosen for it; None when the same words may mean anything by now. `fed`: another command may write its input.
    """

    words: Words
    text: str
    plain: bool = False
    at: str | None = None
    fed: bool = False

    @property
    def known(self) -> tuple[str, ...] | None:
        """Its words, when all of them are known."""
        return _known(self.words)

    @property
    def kind(self) -> Literal["plain", "wrapper", "other"]:
        """Whether it starts nothing else, starts what it is told to, or that is not known."""
        return _kind(self.words)

    @property
    def path(self) -> tuple[str, ...] | None:
        """Program and subcommand, when they say it all."""
        words = self.known
        return command_path(words) if self.plain and words and self.at is not None else None

    @property
    def open(self) -> bool:
        """Whether only the run will tell what it starts."""
        return _is_open(self.words)

    def started(self, depth: int = 0) -> Iterator["Part"]:
        """What it may start: in its words, or in a text that is one of them."""
        for n in range(1, min(len(self.words), MAX_WORDS)):
            if self.words[n] is not None or self.kind == "wrapper":
                yield Part(words=self.words[n:], text=self.text)
        if depth >= MAX_DEPTH:
            return
        for part in (part for text in _texts(self.words) for part in read(text).parts):
            yield part
            if part.kind != "plain":
                yield from part.started(depth + 1)


@functools.lru_cache(maxsize=1024)
def _kind(words: Words) -> Literal["plain", "wrapper", "other"]:
    program = words[0]
    if program is None or not _is_name(program) or wraps(program) or (program != "cd" and changes(words)):
        return "wrapper"
    known = _known(words)
    return "plain" if known is not None and command_path(known) is not None else "other"


def _known(words: Words) -> tuple[str, ...] | None:
    found = tuple(word for word in words if word is not None)
    return found if len(found) == len(words) else None


@functools.lru_cache(maxsize=1024)
def _is_open(words: Words) -> bool:
    kind, known = _kind(words), _known(words)
    if kind == "plain":
        return False
    if len(words) > MAX_WORDS or sum(map(wraps, _names(words))) > MAX_STARTERS:
        return True
    if kind == "other":
        given = [words[n:] for n in range(1, len(words)) if known_as(words[n] or "", EXTERNAL)]
        given += [(word,) for word in _values(words) if known_as(word, EXTERNAL)]
        inside = (part for text in _texts(words) for part in read(text).parts)
        return (
            is_programmed(words)
            or any(_is_open(each) for each in given)
            or any(wraps(part.words[0] or "") and part.open for part in inside)
        )
    if known is None or not _is_name(known[0]):
        return True
    started = told(known)
    return (
        started is None
        or any(_is_open(each) for each in started)
        or not all(read(text).sure for text in _texts(words))
    )


def _names(words: Words) -> Iterator[str]:
    return (name for word in words if word is not None for name in programs(word))


def _values(words: Words) -> Iterator[str]:
    """What stands behind `=` or a short option, in the same word."""
    for word in words[1:]:
        if word is not None:
            yield word.partition("=")[2]
            if word.startswith("-"):
                yield word[2:]


def _texts(words: Words) -> list[str]:
    """What of its words may be command lines of their own, and what is made of them all."""
    if is_plain_edit(words):
        return []
    texts = [text for word in words[1:] if word is not None for text in sorted(texts_in(word))]
    whole = text_of(words)
    return [*texts, whole] if whole else texts


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
    second = lex(text)
    simple = second is not None and not wrong and all(_is_simple(node) for node in nodes)
    commands = [node for node in nodes if node.type in ("command", "declaration_command", "unset_command")]
    parts = [_part(node, simple) for node in sorted(commands, key=lambda n: (n.start_byte, -n.end_byte))]
    if second is not None and not _agree(parts, second):
        simple = False
        parts = [Part(words=part.words, text=part.text) for part in parts]
        parts += [Part(words=words, text=text) for words in second.commands]
    simple = simple and all(part.plain for part in parts)
    joints = {node.type for node in nodes} | (second.joints if second is not None else set())
    return Command(text=text, parts=tuple(_placed(joints, parts)), simple=simple)


def _agree(parts: list[Part], second: Lexed) -> bool:
    """Whether both readings find the same commands with the same words, as far as the first one knows them."""
    return len(parts) == len(second.commands) and all(
        len(part.words) == len(words)
        and words[0] is not None
        and all(one is None or one == other for one, other in zip(part.words, words, strict=True))
        for part, words in zip(parts, second.commands, strict=True)
    )


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
    plain = plain and bool(words) and words[0] is not None and _is_name(words[0])
    return Part(words=tuple(words) or (None,), text=node.text, plain=plain, at="")


def _placed(joints: set[str], parts: list[Part]) -> Iterator[Part]:
    """The parts, each with the folder that it runs in. A `cd` is followed only along `&&`, into a folder below."""
    followed = not joints & {"||", ";", "&", "\n", "|", "|&", "!", "$(", "subshell"}
    at: str | None = "" if followed or not any(changes(part.words) for part in parts) else None
    piped = bool(joints & {"|", "|&"})
    for n, part in enumerate(parts):
        yield msgspec.structs.replace(part, at=at if len(parts) > 1 else "", fed=piped and n > 0)
        if at is not None and changes(part.words):
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
    """Everything in a text that could name a program, quotes and joints taken out, in its order."""
    bare = re.sub(r"\\\n|[\\'\"]", "", text)
    for token in re.findall(r"[^\s;&|<>(){}$`=,:!+]+", bare):
        yield base_name(token)
        if token.startswith("-") and not token.startswith("--"):
            yield from (base_name(token[n:]) for n in range(2, 2 + MAX_CLUSTER))
