"""`python -m bench [NAME…]`: run benchmarks, print what they measured. Nothing here fails because something is slow."""

import argparse
import asyncio
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from .harness import Result, Scale, progress

NAMES = (
    "group_commit", "text_turn", "disk", "tool_turn", "fork", "many", "delta", "startup", "view", "memory", "commits",
    "tools", "hosted", "sandbox", "mcp", "local",
)  # fmt: skip
ON_DEMAND = ("profile",)
"""Prints a text of its own instead of figures, so it runs only when it is named."""

HEADS = ("workload", "ours", "floor or peer", "ratio", "goal", "met")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*NAMES, *ON_DEMAND))}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="tiny sizes: does it run, not how fast")
    size.add_argument("--full", action="store_true", help="the largest sizes too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in (*NAMES, *ON_DEMAND)]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}")
    scale: Scale = "quick" if options.quick else "full" if options.full else "usual"
    found: dict[str, list[Result]] = {}
    for name in options.names or NAMES:
        found[name] = run(name, scale)
    if measured := [result for results in found.values() for result in results]:
        print(table(measured))
    if options.json:
        figures = {name: [result.as_dict() for result in results] for name, results in found.items()}
        options.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(name: str, scale: Scale) -> list[Result]:
    start = time.perf_counter()
    progress(f"{name} …")
    results: list[Result] = asyncio.run(importlib.import_module(f"bench.{name}").run(scale))
    progress(f"{name}: {time.perf_counter() - start:.1f} s")
    return results


def table(results: Sequence[Result]) -> str:
    """In Markdown, so that it can stand in the README as it is."""
    rows = [HEADS, *(cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def cells(result: Result) -> tuple[str, ...]:
    floor = "" if result.floor is None else f"{number(result.floor)} {result.beside}"
    ratio = "" if result.ratio is None else number(result.ratio)
    met = {None: "", True: "yes", False: "NO"}[result.met]
    return (result.what, f"{number(result.ours)} {result.unit}", floor, ratio, str(result.goal or ""), met)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
