"""`tertulia doctor`: what works on this machine, and why not what does not."""

import argparse
import importlib.metadata
import platform
import re

import msgspec

from ..sandbox.policy import Limits
from ..sandbox.probe import Probe, probe
from . import render

CORE = ("msgspec", "apsw", "tree-sitter", "tree-sitter-bash")


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """`layer`: bubblewrap, or none: then commands are refused."""

    layer: str
    problem: str | None
    files: str
    limits: str
    network: str
    defaults: Limits


class Checkup(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    python: str
    system: str
    sandbox: Sandbox
    stores: dict[str, str]
    packages: dict[str, str | None]
    extras: dict[str, bool]


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    found = look()
    if options.json:
        render.data(found)
    else:
        _show(found)
    return 0 if found.sandbox.problem is None else 1


def look() -> Checkup:
    return Checkup(
        version=importlib.metadata.version("tertulia"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        sandbox=_sandbox(probe()),
        stores={
            "memory": "nothing is kept",
            "jsonl": "a folder of readable files",
            "sqlite": f"SQLite {_version('apsw')}, its own and not the interpreter's",
        },
        packages={name: _version(name) for name in CORE},
        extras=_extras(),
    )


def _sandbox(found: Probe) -> Sandbox:
    return Sandbox(
        layer="none" if found.problem else "bubblewrap",
        problem=found.problem,
        files=found.files,
        limits=found.limits,
        network="off, on, or the hosts of a list by a proxy of our own",
        defaults=Limits(),
    )


def _extras() -> dict[str, bool]:
    """Each extra, and whether all that it needs is installed."""
    found: dict[str, bool] = {}
    for requirement in importlib.metadata.requires("tertulia") or ():
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", requirement)
        if match is not None:
            found[match[2]] = found.get(match[2], True) and _version(match[1]) is not None
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _show(found: Checkup) -> None:
    box, limits = found.sandbox, found.sandbox.defaults
    print(f"tertulia {found.version}, Python {found.python}, {found.system}")
    if box.problem is None:
        print("sandbox    commands run under bubblewrap")
    else:
        print(f"sandbox    commands are refused: {box.problem}")
        print(
            "           install bubblewrap; in a container, allow user namespaces; sandbox='off' runs unconfined"
        )
    print(f"  files    confined by {box.files}, with or without bubblewrap")
    print(f"  limits   by {box.limits}: {limits.processes} processes, {limits.memory >> 20} MiB of memory, "
          f"{limits.disk >> 20} MiB written, {limits.seconds:g} s")  # fmt: skip
    print(f"  network  {box.network}")
    print("stores     " + "; ".join(f"{name}: {text}" for name, text in found.stores.items()))
    print(
        "packages   "
        + ", ".join(f"{name} {version or 'missing'}" for name, version in found.packages.items())
    )
    there = [name for name, whole in found.extras.items() if whole]
    absent = [name for name, whole in found.extras.items() if not whole]
    print(
        f"extras     {', '.join(there) or 'none'}"
        + (f"; not installed: {', '.join(absent)}" if absent else "")
    )
