"""What git reads in its configuration. Any bytes will do: what git refuses is left out."""

import os
import re
import stat
from collections.abc import Iterable, Iterator

import msgspec

LARGEST = 1 << 20
DEEPEST = 10  # of files that include files: git gives up beyond
MOST = 200  # files that are read, in all

INCLUDES = ("include.path", "includeif.path")
SECTION = re.compile(r'\[[ \t]*([\w.-]+)[ \t]*("(?:[^"\\\n]|\\.)*")?[ \t]*\]')
NAME = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*")
SPACE = re.compile(r"[ \t\r\n]*")
MEANT = {"t": "\t", "b": "\b", "n": "\n", "\n": ""}


class Setting(msgspec.Struct, frozen=True):
    file: str
    name: str  # in small letters, without what stands in quotes between its two parts
    value: str

    def path(self, folder: str) -> str:
        """The path that is meant, where a relative one counts from this folder. It may lead through links."""
        value = self.value.removeprefix(":(optional)")
        return os.path.join(folder, os.path.expanduser(value))

    def included(self) -> str:
        return self.path(os.path.dirname(self.file))


def of_user() -> list[str]:
    """What holds in every repository, wherever a shell is opened."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    named = ("/etc/gitconfig", "~/.gitconfig", "~/.config/git/config", os.path.join(folder, "git", "config"))
    return list(dict.fromkeys(map(os.path.expanduser, named)))


def settings(files: Iterable[str]) -> Iterator[Setting]:
    """Of these files and of those that they include, whatever an include depends on."""
    waiting, seen = [(file, 0) for file in files], set[str]()
    for file, depth in waiting:
        if file in seen or len(seen) >= MOST:
            continue
        seen.add(file)
        for name, value in _parsed(text(file)):
            setting = Setting(file, name, value)
            yield setting
            if name in INCLUDES and value and depth < DEEPEST:
                waiting.append((setting.included(), depth + 1))


def line(path: str) -> str:
    """The first one of a small file that names a path."""
    return text(path).partition("\n")[0].partition("\0")[0].strip()


def text(path: str) -> str:
    """Nothing where there is none, or none that may be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        with open(descriptor, "rb", closefd=False) as file:
            return os.fsdecode(file.read(LARGEST))
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _parsed(text: str) -> Iterator[tuple[str, str]]:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    section, at = "", 0
    while (at := _after(SPACE, text, at)) < len(text):
        if found := SECTION.match(text, at):
            section, at = found[1].lower(), found.end()
        elif (found := NAME.match(text, at)) and text.startswith("=", found.end()):
            value, at = _value(text, found.end() + 1)
            yield f"{section}.{found[1].lower()}", value
        else:  # a comment, a name alone, or nothing that git would take
            at = text.find("\n", at) % (len(text) + 1)


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found is not None else at


def _value(text: str, at: int) -> tuple[str, int]:
    """The value that begins here, and where it ends: quotes may stand around any piece of it."""
    made: list[str] = []
    kept, quoted = 0, False  # `kept`: how much is left when the space at the end is taken away
    while at < len(text) and text[at] != "\n":
        char, at = text[at], at + 1
        if char == '"':
            quoted = not quoted
            kept = len(made)
        elif not quoted and char in "#;":
            at = text.find("\n", at) % (len(text) + 1)
            break
        elif char == "\\" and at < len(text):
            made += MEANT.get(text[at], text[at])
            kept, at = len(made), at + 1
        elif quoted or char not in " \t\r":
            made.append(char)
            kept = len(made)
        elif made:
            made.append(char)
    return "".join(made[:kept]).partition("\0")[0], at
