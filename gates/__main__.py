"""`python -m gates [NAME…] [--json]`: runs the gates and prints what they find; exit 1 when that is anything."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from gates import (
    allow,
    api,
    documented,
    doors,
    examples,
    hygiene,
    layers,
    links,
    locks,
    manifest,
    pending,
    sizes,
    tools,
    words,
)
from gates.base import Finding

Gate = Callable[[Path], list[Finding]]

# In the order of printing. Those that start processes come first, so that the quick ones run beside them.
GATES: dict[str, Gate] = {
    "types": tools.check_types,
    "examples": examples.check,
    "layers": layers.check,
    "lint": tools.check_lint,
    "format": tools.check_format,
    "api": api.check,
    "documented": documented.check,
    "sizes": sizes.check,
    "allow": allow.check_shrinking,
    "locks": locks.check,
    "doors": doors.check,
    "links": links.check,
    "tests": hygiene.check,
    "words": words.check,
    "requirements": manifest.check,
    "pending": pending.check_shrinking,
}


def run(root: Path, names: Sequence[str]) -> dict[str, list[Finding]]:
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        running = {name: pool.submit(_run_one, GATES[name], root) for name in names}
        return {name: sorted(set(future.result())) for name, future in running.items()}


def _run_one(gate: Gate, root: Path) -> list[Finding]:
    try:
        return gate(root)
    except SyntaxError as error:
        return [Finding(error.filename or "?", error.lineno or 0, f"does not parse: {error.msg}")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these; there are {', '.join(GATES)}")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in GATES]:
        parser.error(f"no gate is called {', '.join(unknown)}; there are {', '.join(GATES)}")
    started = time.monotonic()
    found = run(Path.cwd(), options.names or list(GATES))
    rows = [(name, finding) for name, findings in found.items() for finding in findings]
    if options.json:
        print(json.dumps([{"gate": name, **asdict(finding)} for name, finding in rows], indent=1))
    else:
        for name, finding in rows:
            print(f"[{name}] {finding}")
        print(f"gates: {len(found)} run, {len(rows)} findings, {time.monotonic() - started:.1f} s")
    return 1 if rows else 0


if __name__ == "__main__":
    sys.exit(main())
