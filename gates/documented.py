"""What a user can meet is named in the docs: commands and flags, event types, error codes.

Each subject lists its names from the code, where a page that has sections for it is `(section, name)`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gates.base import Finding

Names = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Subject:
    page: str
    what: str
    module: str  # a tree without this module has none of it
    names: Callable[[], Names]


def _commands() -> Names:
    """Each command is a section of its page, which names every flag and argument of it."""
    from tertulia.cli.main import COMMANDS, make_parser

    yield from _arguments(make_parser())
    for name in COMMANDS:
        for action in _groups(make_parser(only=name)):
            yield from _parser_names(action.choices[name])


def _parser_names(parser: argparse.ArgumentParser) -> Names:
    yield from _arguments(parser)
    for group in _groups(parser):
        for child in group.choices.values():
            yield from _parser_names(child)


def _arguments(parser: argparse.ArgumentParser) -> Names:
    yield parser.prog, parser.prog
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction) and "--help" not in action.option_strings:
            for name in action.option_strings or [str(action.metavar or action.dest)]:
                yield parser.prog, name


def _groups(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _events() -> Names:
    from tertulia.records import event

    for kind in typing.get_args(event.AnyEvent):
        yield "", str(kind.__struct_config__.tag)


def _errors() -> Names:
    from tertulia.records import errors

    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.TertuliaError):
            yield "", value.__name__
            yield "", value.code


def _records() -> Names:
    from tertulia.records import record

    for kind in typing.get_args(record.AnyRecord):
        yield "", str(kind.__struct_config__.tag)


SUBJECTS = {
    "commands": Subject("docs/cli.md", "the command line", "tertulia.cli.main", _commands),
    "events": Subject("docs/events.md", "an event type", "tertulia.records.event", _events),
    "errors": Subject("docs/errors.md", "an error", "tertulia.records.errors", _errors),
    "records": Subject("docs/log.md", "a record type", "tertulia.records.record", _records),
}


def check(root: Path) -> list[Finding]:
    path = os.pathsep.join([str(root / "src"), str(Path(__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-m", "gates.documented"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return [Finding("gates/documented.py", 0, "the names cannot be read:\n" + done.stderr.strip())]
    findings = []
    for subject, names in json.loads(done.stdout).items():
        findings += _check_page(root, SUBJECTS[subject], names)
    return findings


def _check_page(root: Path, subject: Subject, names: list[tuple[str, str]]) -> list[Finding]:
    file = root / subject.page
    page = file.read_text(encoding="utf-8") if file.exists() else ""
    findings = []
    for section, name in names:
        text = _section(page, section) if section else page
        if not re.search(rf"`[^`\n]*(?<![\w-]){re.escape(name)}(?![\w-])[^`\n]*`", text):
            where = f"below a heading with `{section}`" if section else "in backquotes"
            findings.append(Finding(subject.page, 0, f"{subject.what} is missing: name `{name}` {where}"))
    return findings


def _section(page: str, title: str) -> str:
    """The text under the heading that holds this title in backquotes, with the heading."""
    found = re.search(
        rf"^#+ [^\n]*`{re.escape(title)}`[^\n]*\n.*?(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL
    )
    return found[0] if found else ""


def names() -> dict[str, list[tuple[str, str]]]:
    return {key: list(subject.names()) for key, subject in SUBJECTS.items() if _exists(subject.module)}


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    print(json.dumps(names()))
