"""`tertulia store`: check, repair, back up."""

import argparse

import msgspec

from ..store import care
from ..store.report import Report
from . import render


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="say what is wrong with a store; changes nothing")
    repair = actions.add_parser("repair", help="write a repaired copy; the store itself is not changed")
    repair.add_argument("--output", metavar="TARGET", help="where to write it (default: PATH.repaired)")
    repair.add_argument("--dry-run", action="store_true", help="only say what would be done")
    backup = actions.add_parser("backup", help="write a whole copy, also while others write")
    for action in (check, repair, backup):
        action.add_argument("path", metavar="PATH", help="a SQLite file, or jsonl:DIR")
        action.add_argument("--json", action="store_true", help="print the report as JSON")
    backup.add_argument("target", metavar="TARGET", help="where to write it")


def run(options: argparse.Namespace) -> int:
    if options.action == "backup":
        report = care.backup(options.path, options.target, render.progress("backup"))
    elif options.action == "repair" and not options.dry_run:
        report = care.repair(options.path, options.output)
    else:
        report = care.check(options.path)
    if options.json:
        render.data({"ok": report.ok, **msgspec.to_builtins(report)})
    else:
        _show(report)
    # A repair has done what it should when its copy stands, whatever it found.
    return 0 if report.ok or (options.action == "repair" and report.written) else 1


def _show(report: Report) -> None:
    held = f"{_count(report.conversations, 'conversation')}, {_count(report.kept, 'record')}"
    render.show(f"{report.path}: {report.kind}, {held}")
    for problem in report.problems:
        render.show(f"  {problem.where}: {problem.what}; {problem.action}")
    if report.lost:
        render.show(f"{_count(report.lost, 'record')} cannot be read")
    render.show(f"written: {report.written}" if report.written else _verdict(report))


def _verdict(report: Report) -> str:
    if report.ok:
        return "no problems"
    return f"{_count(len(report.problems), 'problem')}; `tertulia store repair` writes a repaired copy"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
