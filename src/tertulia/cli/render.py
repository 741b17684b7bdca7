"""What commands print: data on stdout, everything else on stderr."""

import io
import os
import re
import sys
from collections.abc import Callable

import msgspec

from ..records.errors import TertuliaError

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What moves the cursor, paints, or talks to the terminal; also halves of characters, which cannot be written."""


def prepare() -> None:
    """What the terminal has no letters for is written out: no answer is lost for one of them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def plain(text: str) -> str:
    """For a terminal: what models, tools, servers and files say is words, and can do nothing there.

    Character by character, so that an escape that comes in two pieces is none either.
    """
    return CONTROL.sub(lambda found: "" if found[0] == "\r" else "\ufffd", text)


def show(text: str, *, flush: bool = False) -> None:
    """A line on stdout: as it is for a program, as words for a person."""
    print(plain(text) if sys.stdout.isatty() else text, flush=flush)


def data(value: object) -> None:
    """A value as JSON."""
    show(msgspec.json.format(msgspec.json.encode(value)).decode())


def error(problem: TertuliaError, *, as_json: bool) -> None:
    if as_json:
        data({"error": {"code": problem.code, "message": problem.message, "hint": problem.hint}})
        return
    note(f"tertulia: {problem.message}")
    if problem.hint:
        note(f"  {problem.hint}")


def note(text: str) -> None:
    print(plain(text), file=sys.stderr)


def progress(what: str) -> Callable[[int, int], None] | None:
    """Shows how far a long command is; None where nobody is looking."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        percent = 100 * done // total if total else 100
        print(f"\r{what}: {percent:3d} %", end=end, file=sys.stderr, flush=True)

    return show


def discard_output() -> None:
    """After the reader of stdout has gone: nothing more is written, not even when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
