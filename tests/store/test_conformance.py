"""The memory store and the shared one keep the rules; the suite itself can be used by a stranger.

The stores that stand on disk run the suite in their own files.
"""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tertulia.records.errors import SequenceConflict
from tertulia.store.base import Batch, Fence, Store
from tertulia.store.memory import MemoryStore
from tertulia.store.open import open_store
from tertulia.testing.store_conformance import CASES, Case, store_conformance

PAGE = Path(__file__).parents[2] / "docs" / "store.md"


async def memory() -> Store:
    return MemoryStore()


@pytest.mark.req("S0-03b", "S2-12a", "S4-06a")
@pytest.mark.parametrize("case", [case for case in CASES if not case.needs], ids=lambda case: case.name)
async def test_memory(case: Case) -> None:
    await case.run(memory)


@pytest.mark.req("S0-03b", "S2-12a")
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.needs <= {"durable"}], ids=lambda case: case.name
)
async def test_a_path_that_others_of_the_process_have_open(case: Case, tmp_path: Path) -> None:
    """Each opening is a handle on one store, which another handle keeps alive."""

    async def opener() -> Store:
        return await open_store(tmp_path / "store.db", durability="normal")

    other = await opener()
    await case.run(opener)
    await other.aclose()


async def test_the_example_for_strangers_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    example = next(block for block in blocks if "CASES" in block)
    assert len([line for line in example.splitlines() if line and "import" not in line]) <= 5
    ran: list[str] = []
    original = Case.run

    async def run(case: Case, opener: Callable[[], Awaitable[Store]]) -> None:
        ran.append(case.name)
        await original(case, opener)

    monkeypatch.setattr(Case, "run", run)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example.replace("asyncio.run(main())", ""), str(PAGE), "exec"), names)
    main = names["main"]
    assert callable(main)
    await main()
    assert ran == [case.name for case in CASES if not case.needs]


async def test_the_suite_runs_what_a_store_is_able_to() -> None:
    assert await store_conformance(lambda: memory, has=()) == len([case for case in CASES if not case.needs])


class Careless(MemoryStore):
    """Writes what is right in a batch, and then says that something was wrong."""

    def _commit(self, batch: Batch, fence: Fence | None) -> int:
        for n in range(len(batch)):
            super()._commit(batch[n : n + 1], fence)
        return super()._commit((), fence)


async def test_a_store_that_does_half_a_batch_is_found() -> None:
    async def careless() -> Store:
        return Careless()

    case = next(case for case in CASES if "all_or_nothing" in case.name)
    with pytest.raises(AssertionError, match="refused batch"):
        await case.run(careless)


class Deaf(MemoryStore):
    """Takes any seq."""

    def _commit(self, batch: Batch, fence: Fence | None) -> int:
        try:
            return super()._commit(batch, fence)
        except SequenceConflict:
            return 0


async def test_a_store_that_hides_an_error_is_found() -> None:
    async def deaf() -> Store:
        return Deaf()

    case = next(case for case in CASES if "taken_once" in case.name)
    with pytest.raises(AssertionError, match="expected SequenceConflict"):
        await case.run(deaf)
