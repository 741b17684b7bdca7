"""What a program that starts others starts, where its words say it all; and what is only known from a run."""

import posixpath
import re

import msgspec

from .programs import INTERPRETERS, STATE, WRAPPERS, is_option, known_as, names
from .words import Words


class Takes(msgspec.Struct, frozen=True):
    """The options before what a wrapper starts: letters that stand alone, those with a value, long ones; operands."""

    alone: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    operands: int = 0


_NOTHING = Takes()
TELLING: dict[str, Takes] = {
    **dict.fromkeys(names("builtin catchsegv chronic eval nohup unbuffer uvx"), _NOTHING),
    "command": Takes("pvV"),
    "doas": Takes("n", "u"),
    "env": Takes("i0v", "uC", names("--ignore-environment --null")),
    "exec": Takes("cl", "a"),
    "flock": Takes("nxseo", "w", names("--nonblock --exclusive --shared"), 1),
    "ionice": Takes("t", "cn"),
    "nice": Takes("", "n"),
    "npx": Takes("yq", "", names("--yes --no --no-install")),
    "setsid": Takes("cfw", "", names("--wait --fork")),
    "ssh": Takes("46ACTkqtvxX", "ilp", operands=1),
    "stdbuf": Takes("", "ioe"),
    "sudo": Takes("nEHkbP", "ugp"),
    "time": Takes("apv", "fo"),
    "timeout": Takes("v", "ks", names("--foreground --preserve-status --verbose"), 1),
    "watch": Takes("bcdegt", "n", names("--color --no-title")),
    "xargs": Takes("0rtx", "nPIdLs", names("--null --no-run-if-empty")),
}
"""The wrappers whose words say what they start. What any other one starts is not known."""

_TEXTS = names("eval ssh watch")
"""These make one text of their words, which a shell reads."""

_QUIET = names("""
    alias cd declare disown export local popd pushd read readonly set shift shopt trap typeset ulimit umask unalias
    unset
""")
"""Builtins that start nothing but what stands in their words as a text."""

_SHELLS = names("ash bash dash ksh mksh rbash sh zsh")
_PYTHONS = names("pypy python")
_FILES = (
    _SHELLS
    | _PYTHONS
    | names("csh expect fish julia lua luajit node nodejs perl php rscript ruby tclsh tcsh wish")
)
"""Interpreters whose first word is the file that they run."""

_READERS = names("""
    asyncio bdb cmd code codeop cprofile doctest idlelib ipython pdb profile runpy sqlite3 timeit trace tracemalloc
""")
"""Modules of Python that run what is in their words, or on their input."""

_MAKE = names("make gmake")
_EDITORS = names("sed gsed")
_FOUND = names("-exec -execdir -ok -okdir")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_STREAM = re.compile(r"-|(?:/+|(?:\.\./)+)(?:dev|proc)/.*|dev/(?:stdin|fd).*|proc/(?:self|thread-self|\d).*")
_COUNTS = re.compile(r"%[-+ #0-9.*']*[hlqjztL]*n")

_UP_TO = r"(?:\\.|\[\^?(?:\[:[a-z]+:\]|(?!{0})[^\[\]\\\n])+\]|(?!{0})[^\[\\\n])*{0}"
_ADDRESS = r"(?:[0-9]+|\$|/" + _UP_TO.format("/") + ")"
_SED = re.compile(
    rf"(?:{_ADDRESS}(?:,(?:[+~][0-9]+|{_ADDRESS}))?!?)? ?"
    r"(?:[pdqDNPGHhgx=]|s([^\w\s\\;\[\]])" + _UP_TO.format(r"\1") * 2 + "[gIip0-9]*)"
)
_NEXT = re.compile(r" *(?:; *|$)")
"""One command of sed that starts nothing and writes nothing."""


def told(words: tuple[str, ...]) -> list[Words] | None:
    """The commands that a wrapper starts; None when its words do not say."""
    name, rest = known_as(words[0], WRAPPERS), words[1:]
    if name in INTERPRETERS:
        file = _run_by(name, rest)
        return None if file is None else [file]
    if name == "find":
        return _found(rest)
    if name in ("fd", "fdfind"):
        exec_ = ("-x", "-X", "--exec", "--exec-batch")
        return None if any(is_option(word, option) for word in rest for option in exec_) else []
    if name in _QUIET:
        return []
    if name in (".", "source"):
        return [] if rest and not rest[0].startswith("-") and not _is_stream(rest[0]) else None
    taken = _behind_options(name, rest)
    if taken is None:
        return None
    inner, values = taken
    if not inner or name in _TEXTS:
        return None if name == "ssh" and not inner else []  # without a command it is a shell that is fed
    return [_fed(inner, values.get("I"))] if name == "xargs" else [inner]


def text_of(words: Words) -> str | None:
    """What a wrapper makes of its words for a shell to read."""
    known = tuple(word for word in words[1:] if word is not None)
    name = words[0] or ""
    if name == "eval":
        return " ".join(known)
    taken = _behind_options(name, known) if name in _TEXTS and len(known) == len(words) - 1 else None
    return None if taken is None else " ".join(taken[0])


def is_programmed(words: Words) -> bool:
    """Whether a program that is no wrapper is given something to start in a language of its own."""
    known = tuple(word for word in words[1:] if word is not None)
    if known_as(words[0] or "", _MAKE):
        return any(is_option(word, "--eval") or _is_stream(word.removeprefix("-f")) for word in known) or any(
            _is_stream(word.partition("=")[2]) for word in known if word.startswith("--")
        )
    return bool(known_as(words[0] or "", _EDITORS)) and not is_plain_edit(words)


def is_plain_edit(words: Words) -> bool:
    """Whether it is sed with a script that starts nothing; then no word of it is a command line."""
    known = tuple(word for word in words if word is not None)
    return len(known) == len(words) and bool(known_as(known[0], _EDITORS)) and _is_plain_sed(known[1:])


def changes(words: Words) -> bool:
    """Whether a builtin may make the same words mean something else behind it, or looks into the words by itself."""
    name, rest = words[0], words[1:]
    if name == "printf":
        first = rest[0] if rest else ""
        shape = next((word for word in rest if word != "--"), "")
        dashed = first is None or (first.startswith("-") and first != "--")
        return dashed or shape is None or _COUNTS.search(shape) is not None
    if name == "test":
        return None in rest or "-v" in rest or "-R" in rest
    if name in ("history", "jobs", "wait"):
        return any(word is None or word.startswith("-") for word in rest)
    return name in STATE


def _run_by(name: str, rest: tuple[str, ...]) -> Words | None:
    """The file that an interpreter runs, which it may look for where programs are, or the module."""
    flags = "euxv" if name in _SHELLS else "uBOIsSE" if name in _PYTHONS else ""
    while flags and rest and re.fullmatch(f"-[{flags}]+", rest[0]):
        rest = rest[1:]
    if name in _PYTHONS and len(rest) > 1 and rest[0] == "-m":
        module = rest[1].partition(".")[0].casefold()
        return rest[1:] if re.fullmatch(r"\w+", module) and module not in _READERS else None
    file = name in _FILES and bool(rest) and not rest[0].startswith(("-", "+")) and not _is_stream(rest[0])
    return rest if file else None


def _is_stream(word: str) -> bool:
    """Whether a file may be what the program is fed."""
    return _STREAM.fullmatch(posixpath.normpath(word)) is not None if word else False


def _behind_options(name: str, words: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """What stands behind the options and operands of a wrapper, and the options' values."""
    takes = TELLING.get(name)
    if takes is None:
        return None
    values: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        letters = "" if word in takes.long else word[1:]
        for n, letter in enumerate(letters):
            if letter in takes.valued:
                glued = letters[n + 1 :]
                values[letter] = glued or "".join(words[at : at + 1])
                at += 0 if glued else 1
                break
            if letter not in takes.alone:
                return None
        if len(word) == 1:
            return None
    while name in ("env", "sudo", "doas") and at < len(words) and _ASSIGNMENT.match(words[at]):
        at += 1
    rest = words[at + takes.operands :]
    return None if rest and rest[0].startswith("-") else (rest, values)


def _fed(words: tuple[str, ...], mark: str | None) -> Words:
    """With what comes on the input in the place of the mark, and behind the words."""
    return (*(None if mark is not None and mark in word else word for word in words), None)


def _found(words: tuple[str, ...]) -> list[Words]:
    """What `find` starts, with what it finds in the place of `{}`."""
    started: list[Words] = []
    for n, word in enumerate(words):
        if word in _FOUND:
            rest = words[n + 1 :]
            end = next((k for k, each in enumerate(rest) if each == ";" or (each == "+" and k)), len(rest))
            started.append(tuple(None if "{}" in each else each for each in rest[:end]) or (None,))
    return started


def _is_plain_sed(words: tuple[str, ...]) -> bool:
    scripts: list[str] = []
    others: list[str] = []
    waiting = False
    for word in words:
        if waiting:
            scripts.append(word)
            waiting = False
        elif re.fullmatch(
            r"-[nErsuz]*e|-[nErsuz]+|-i(\.\w+)?|--quiet|--silent|--regexp-extended|--in-place", word
        ):
            waiting = word.endswith("e") and not word.startswith(("--", "-i"))
        elif word.startswith("-"):
            return False
        else:
            others.append(word)
    scripts = scripts or others[:1]
    return not waiting and all(_is_plain_script(script) for script in scripts)


def _is_plain_script(script: str) -> bool:
    at = 0
    while found := _SED.match(script, at):
        at = found.end()
        rest = _NEXT.match(script, at)
        if rest is None:
            return False
        at = rest.end()
        if at == len(script):
            return True
    return False
