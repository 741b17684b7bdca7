"""Outputs that were cut: read in pages by the conversation that made them, and by no other."""

import re
from pathlib import Path
from typing import Any

import pytest

from tertulia import Session, ToolContext
from tertulia.store.blobs import ref_of
from tertulia.testing import ScriptedModel, call
from tertulia.tools.builtin import default_tools

READ = tuple(tool for tool in default_tools() if tool.name == "read")
LINES = "".join(f"line {n} {'x' * 90}\n" for n in range(1, 10_001))


async def much() -> str:
    """A million characters."""
    return LINES


async def one_line() -> str:
    return "".join(f"{n:09}," for n in range(10_000))


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return {"memory": None, "sqlite": str(tmp_path / "s.db"), "jsonl": f"jsonl:{tmp_path / 'j'}"}[
        request.param
    ]


def opened(store: Any, root: Path, **options: Any) -> Any:
    return Session.open(
        store=store, model=options.pop("model"), tools=[*READ, much, one_line], cwd=root, **options
    )


async def last(session: Any) -> tuple[str, str]:
    *_, found = (each for each in await session.transcript() if each.type == "tool_result")
    return found.status, found.text


async def used(session: Any, model: ScriptedModel, name: str, **args: Any) -> tuple[str, str]:
    """The result of one call in a turn of its own."""
    model.add([call(name, **args)], "Done.")
    await session.prompt("Go.")
    return await last(session)


def path_in(text: str) -> str:
    found = re.search(r"\[the whole output: (output:\S+)\]$", text)
    assert found is not None
    return found[1]


async def test_a_cut_output_is_read_in_pages(store: Any, root: Path) -> None:
    model = ScriptedModel()
    async with opened(store, root, model=model) as session:
        _, cut = await used(session, model, "much")
        path = path_in(cut)
        lines: list[str] = []
        offset = 1
        while len(lines) < 10_000:
            status, page = await used(session, model, "read", path=path, offset=offset)
            assert status == "ok"
            assert len(page) <= 50_000
            assert "the whole output" not in page  # a page is never cut itself
            *numbered, rest = page.splitlines()
            if len(lines) + len(numbered) < 10_000 - 1:
                offset = int(rest.rpartition("=")[2].rstrip("]"))
            else:
                numbered.append(rest)
            lines += [each.partition("\t")[2] for each in numbered]
            assert offset == len(lines) + 1 or len(lines) == 10_000
        assert "".join(f"{line}\n" for line in lines) == LINES


async def test_a_long_line_is_read_by_its_characters(store: Any, root: Path) -> None:
    model = ScriptedModel()
    async with opened(store, root, model=model) as session:
        _, cut = await used(session, model, "one_line")
        found, column = "", 1
        while column:
            _, page = await used(session, model, "read", path=path_in(cut), limit=1, column=column)
            text, _, more = page.partition("\t")[2].partition(" [… ")
            found += text
            column = int(more.rpartition("=")[2].rstrip("]")) if more else 0
        assert found == await one_line()


async def test_after_reopening_and_in_a_fork_it_can_still_be_read(tmp_path: Path, root: Path) -> None:
    place, model = str(tmp_path / "s.db"), ScriptedModel()
    async with opened(place, root, model=model) as session:
        _, cut = await used(session, model, "much")
        id = session.id
    async with opened(place, root, model=model, id=id) as session:
        fork = await session.fork()
        for each in (session, fork):
            status, page = await used(each, model, "read", path=path_in(cut), offset=9_999)
            assert status == "ok"
            assert page.startswith("9999\tline 9999 xx")


async def test_what_another_conversation_keeps_cannot_be_read_by_guessing(store: Any, root: Path) -> None:
    model = ScriptedModel()
    (root / "a.txt").write_text("kept for a rewind\n")
    async with opened(store, root, model=model) as session:
        other = await session.open_conversation()
        _, cut = await used(session, model, "much")
        for path in (path_in(cut), f"output:{ref_of(b'nothing')}", "output:", "output:../../a.txt"):
            status, text = await used(other, model, "read", path=path)
            assert status == "error"
            assert "no result of this conversation has" in text


async def test_what_a_file_held_is_not_read_as_an_output(root: Path) -> None:
    (root / "a.txt").write_text("kept for a rewind\n")
    model = ScriptedModel()
    tools = [tool for tool in default_tools() if tool.name in ("read", "write")]
    async with Session.open(model=model, tools=tools, cwd=root, approvals="allow") as session:
        await used(session, model, "write", path="a.txt", content="new\n")
        status, _ = await used(
            session, model, "read", path=f"output:{ref_of(b'kept for a rewind' + bytes([10]))}"
        )
        assert status == "error"


async def test_bytes_that_a_tool_of_ones_own_kept_are_read_by_others(root: Path) -> None:
    async def keep(context: ToolContext) -> str:
        ref = await context.put_blob(b"one\ntwo\n")
        assert await context.get_blob(ref) == b"one\ntwo\n"
        return ref

    model = ScriptedModel()
    async with Session.open(model=model, tools=[*READ, keep], cwd=root) as session:
        _, ref = await used(session, model, "keep")
        assert await used(session, model, "read", path=f"output:{ref}", offset=2) == ("ok", "2\ttwo")


@pytest.mark.parametrize("retention", ["headers_only", "none"])
async def test_a_strict_retention_keeps_no_whole(store: Any, root: Path, retention: str) -> None:
    model = ScriptedModel()
    async with opened(store, root, model=model, retention=retention) as session:
        _, cut = await used(session, model, "much")
        assert "the whole output was not kept" in cut
        status, _ = await used(session, model, "read", path=f"output:{ref_of(LINES.encode())}")
        assert status == "error"


async def test_a_small_limit_of_results_makes_small_pages(root: Path) -> None:
    (root / "a.txt").write_text(LINES)
    model = ScriptedModel()
    async with opened(None, root, model=model, max_output=1000) as session:
        _, page = await used(session, model, "read", path="a.txt")
        assert len(page) <= 1000
        assert page.endswith("[9993 more lines; go on with offset=8]")
