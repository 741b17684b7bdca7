"""W7, `import tertulia` in fresh interpreters, and how many distributions an installation of the core brings.

Beside: an interpreter that does nothing, and one that imports asyncio and msgspec, which nothing of ours can avoid.
All of them find compiled bytecode, as an installed package does.
"""

import asyncio
import importlib.metadata
import re
import tempfile

from .harness import Goal, Result, Scale, Way, pick, python, rounds, timed


async def run(scale: Scale) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="tertulia-bench-") as cache:
        ways = [_start(code, cache) for code in ("import tertulia", "pass", "import asyncio, msgspec")]
        for way in ways:
            await way()  # compiles
        ours, nothing, needed = await rounds(pick(scale, 1, 15), *ways)
    return [
        Result("W7 import tertulia", ours, "ms", nothing, "an empty interpreter", Goal("ours", 120)),
        Result("W7 import tertulia", ours, "ms", needed, "import asyncio, msgspec"),
        Result("W7 distributions of the core", len(distributions("tertulia")), "", goal=Goal("ours", 5)),
    ]


def _start(code: str, cache: str) -> Way:
    environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
    return lambda: timed(1, lambda: asyncio.to_thread(python, code, **environment))


def distributions(name: str) -> set[str]:
    """What an installation of it without extras brings, itself not counted."""
    found: set[str] = set()
    names = [name]
    while names:
        for requirement in importlib.metadata.requires(names.pop()) or ():
            match = re.match(r"[\w.-]+", requirement)
            if match and "extra ==" not in requirement and match[0] not in found:
                found.add(match[0])
                names.append(match[0])
    return found
