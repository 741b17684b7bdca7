"""The command `tertulia`: parses what was typed, runs it, and turns every error into a line and an exit code.

Each command is a module of this package with `add(parser)`, which declares its arguments, and `run(arguments)`,
which answers with the exit code. Only the module of the command that was typed is imported.
"""

import argparse
import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..records.errors import TertuliaError
from . import render

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

COMMANDS = {
    "chat": ("chat", "talk to an agent in the terminal"),
    "run": ("run", "answer one prompt"),
    "models": ("models", "show which models are usable here, or install the embedded one"),
    "mcp": ("mcp", "MCP servers: show, add and test them, or be one"),
    "store": ("store", "check, repair or back up a store"),
    "doctor": ("doctor", "say what works on this machine, the sandbox first"),
}
"""The name of each command, its module in this package, and what the overview says of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    render.prepare()
    typed = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser(only=next((word for word in typed if not word.startswith("-")), ""))
    try:
        options = parser.parse_args(typed)
    except SystemExit as end:  # argparse has printed what there was to print
        return int(end.code or OK)
    if options.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        status = int(_module(options.command).run(options))
        sys.stdout.flush()  # so that a reader who has gone is noticed here, not when the interpreter ends
        return status
    except TertuliaError as error:
        render.error(error, as_json=getattr(options, "json", False))
        return FAILED
    except KeyboardInterrupt:
        render.note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        render.discard_output()
        return FAILED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        render.discard_output()
        render.note(f"tertulia: the output cannot be written: {error.strerror}")
        return FAILED


def make_parser(only: str = "") -> argparse.ArgumentParser:
    """All commands in the overview, and the arguments of the one that is named."""
    parser = _Parser(prog="tertulia", description="An agent-session runtime.")
    parser.add_argument("--version", action=_Version, help="show the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (_, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == only:
            _module(name).add(command)
    return parser


def _module(command: str) -> Any:
    return import_module(f".{COMMANDS[command][0]}", __package__)


class _Parser(argparse.ArgumentParser):
    """Its subparsers are of its kind: a flag has to be written out everywhere, so that new ones break no script."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)


class _Version(argparse.Action):
    """Reads the version only when it is asked for: finding it costs more than the rest of the start."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"tertulia {version('tertulia')}")
        parser.exit()
