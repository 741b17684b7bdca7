"""The conformance suite of stores. It runs on any Store, without a test framework:

    for case in CASES:
        await case.run(opener)

`opener` gives a new Store over the same storage each time; each case wants a storage of its own.
"""

from collections.abc import Callable, Iterable

from . import store_commits, store_erasing, store_inbox, store_paths
from .store_kit import Case, Need, Opener

CASES: tuple[Case, ...] = (
    *store_commits.CASES,
    *store_paths.CASES,
    *store_inbox.CASES,
    *store_erasing.CASES,
)


async def store_conformance(new_storage: Callable[[], Opener], has: Iterable[Need] = ("durable",)) -> int:
    """Runs every case whose needs this store has, each over a new storage; how many ran."""
    able = frozenset(has)
    ran = 0
    for case in CASES:
        if case.needs <= able:
            await case.run(new_storage())
            ran += 1
    return ran
