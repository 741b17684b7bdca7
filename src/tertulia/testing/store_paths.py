"""Conformance: branches, forks, reading along a path, lists and changes."""

from ..records.errors import ConversationNotFound, InvalidInput
from ..records.ids import ConversationId, SessionId
from ..store.base import ConversationRow, PutConversation, PutSession, Store
from ..transcript.path import Segment
from .store_kit import (
    A,
    B,
    C,
    Case,
    Opener,
    S,
    append,
    branch,
    case,
    create,
    fork,
    listed,
    opened,
    path,
    read,
    refused,
    row,
    rows,
    same,
    seqs,
    writer,
)

CASES: list[Case] = []


@case(CASES)
async def a_fork_reads_its_parent_up_to_the_cut(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 4)
        await w.commit(*fork(A, B, 3))
        same(await read(store, B), list(rows(1, 3)), "a fork that has nothing of its own")
        same((await store.open(B)).last, 3, "its last seq")
        await w.commit(append(B, 4, 5, text="of the fork"), append(A, 5, 5))
        same(await read(store, B), [*rows(1, 3), *rows(4, 5, "of the fork")], "the fork")
        same(await read(store, A), list(rows(1, 5)), "its parent")
        found = await store.open(B)
        same(found.conversation.parent, (A, 3), "where it comes from")
        same([(each.conversation, each.n) for each in found.branches][:1], [(B, 0)], "its own branch first")
        await w.commit(*fork(B, C, 2))
        same(await read(store, C), list(rows(1, 2)), "a fork cut in what its parent inherited")
        await w.commit(append(C, 3, 3, text="c"))
        same(await read(store, C), [*rows(1, 2), row(3, "c")], "and what it adds")


@case(CASES)
async def a_fork_may_begin_with_nothing(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 2)
        await w.commit(*fork(A, B, 0))
        same(await read(store, B), [], "a fork at 0")
        same(await store.read([]), [], "a path of no segments")
        await w.commit(append(B, 1, 1, text="b"))
        same(await read(store, B), [row(1, "b")], "what it adds")


@case(CASES)
async def a_fork_of_a_fork_of_a_branch(opener: Opener) -> None:
    """The branches of several conversations on one path, each with records of its own."""
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 4)
        await w.commit(branch(A, 1, 3), append(A, 5, 6, branch=1), branch(A, 2, 5, parent=1))
        await w.commit(append(A, 7, 8, branch=2), *fork(A, B, 7, n=2), append(B, 8, 9), *fork(B, C, 8))
        same(await seqs(store, A, 2), [1, 2, 3, 5, 7, 8], "a branch of a branch")
        same(await seqs(store, B), [1, 2, 3, 5, 7, 8, 9], "the fork of that branch")
        same(await seqs(store, C), [1, 2, 3, 5, 7, 8], "the fork of the fork")
        found = await store.open(A)
        same([each.n for each in found.branches], [0, 1, 2], "the branches by number")


@case(CASES)
async def reading_goes_both_ways_in_pages(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 6)
        await w.commit(branch(A, 1, 4), append(A, 7, 9, branch=1), *fork(A, B, 8, n=1), append(B, 9, 12))
        way = path(await store.open(B))
        whole = [1, 2, 3, 4, 7, 8, 9, 10, 11, 12]
        for limit in (1, 2, 3, 5, 10, 500):
            same(await _pages(store, way, limit, reverse=False), whole, f"forwards by {limit}")
            same(await _pages(store, way, limit, reverse=True), whole[::-1], f"backwards by {limit}")
        for after in range(14):
            found = [each.seq for each in await store.read(way, after=after)]
            same(found, [seq for seq in whole if seq > after], f"after {after}")
            found = [each.seq for each in await store.read(way, after=after, reverse=True)]
            below = [seq for seq in whole[::-1] if seq < after] if after else whole[::-1]
            same(found, below, f"below {after}")
        same(await store.read(way, limit=0), [], "no records at all")
        short = [Segment(A, 0, 1, 3), Segment(A, 1, 7, 9)]
        same([each.seq for each in await store.read(short)], [2, 3, 8, 9], "some stretches")


async def _pages(store: Store, way: list[Segment], limit: int, *, reverse: bool) -> list[int]:
    found: list[int] = []
    after = 0
    while True:
        page = await store.read(way, after=after, limit=limit, reverse=reverse)
        same(len(page) <= limit, True, "that a page keeps to its limit")
        if not page:
            return found
        found.extend(each.seq for each in page)
        after = found[-1]


@case(CASES)
async def what_is_not_there_holds_no_records(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 2)
        way = [Segment(C, 0, 0, 9), Segment(A, 5, 0, 9), Segment(A, 0, 0, 99)]
        same([each.seq for each in await store.read(way)], [1, 2], "a path through what is not there")


@case(CASES)
async def fifty_forks_deep(opener: Opener) -> None:
    ids = [ConversationId(f"fork {n}") for n in range(51)]
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(ids[0], 2)
        for n in range(1, 51):
            await w.commit(*fork(ids[n - 1], ids[n], 2 * n), append(ids[n], 2 * n + 1, 2 * n + 2))
        same(await seqs(store, ids[50]), list(range(1, 103)), "the last of 50 nested forks")
        way = path(await store.open(ids[50]))
        same(len(way), 51, "its stretches")
        tail = await store.read(way, limit=5, reverse=True)
        same([each.seq for each in tail], [102, 101, 100, 99, 98], "its end")
        middle = await store.read(way, after=49, limit=3)
        same([each.seq for each in middle], [50, 51, 52], "its middle")


@case(CASES)
async def the_row_of_a_conversation_can_change(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), append(A, 1, 1))
        changed = ConversationRow(
            id=A,
            session=S,
            active=1,
            title="ñ 🦜",
            archived=True,
            parent=(B, 3),
            created=1,
            updated=44,
            settings={"model": "m", "deep": {"list": [1, None, 2.5, "x"]}},
        )
        await w.commit(branch(A, 1, 1), PutConversation(row=changed))
        same((await store.open(A)).conversation, changed, "the row")
        settings = {"theme": "dark", "deep": [{"x": 1}]}
        await w.commit(PutSession(session=S, root=B, settings=settings))
        found = await store.session(S)
        same((found.root, found.settings), (B, settings), "the session")
        await w.commit(append(A, 2, 2, ts=40))
        same((await store.open(A)).conversation.updated, 44, "updated, after an append that is earlier")
        same(await seqs(store, A), [1, 2], "the records")


@case(CASES)
async def lists_go_by_last_change(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        for id, updated in (("b", 5), ("c", 9), ("a", 5), ("d", 0)):
            await w.commit(*create(ConversationId(id), updated=updated))
        same(await listed(store), ["c", "a", "b", "d"], "the order")
        await w.commit(append(ConversationId("d"), 1, 1, ts=7))
        same(await listed(store), ["c", "d", "a", "b"], "the order after an append")
        x = await writer(store, SessionId("other"))
        await x.commit(*create(ConversationId("x"), session=SessionId("other"), updated=6))
        same(await listed(store), ["c", "d", "x", "a", "b"], "the list of all sessions")
        same(await listed(store, session=SessionId("other")), ["x"], "the list of one session")
        same(await listed(store, session=SessionId("none")), [], "the list of no session")
        await w.commit(PutConversation(row=ConversationRow(id=A, session=S, archived=True, updated=5)))
        same(await listed(store), ["c", "d", "x", "b"], "without the archived")
        same(await listed(store, archived=True), ["a"], "the archived")
        same(await listed(store, archived=None), ["c", "d", "x", "a", "b"], "both")


@case(CASES)
async def lists_come_in_pages(opener: Opener) -> None:
    ids = [ConversationId(f"c{n:02}") for n in range(25)]
    async with opened(opener) as store:
        w = await writer(store)
        for n, id in enumerate(ids):
            await w.commit(*create(id, updated=n // 4))
        expected = sorted(ids, key=lambda id: (-(ids.index(id) // 4), id))
        for limit in (1, 4, 7, 25, 50):
            same(await _list_pages(store, limit), expected, f"pages of {limit}")
        first = await store.list(limit=10)
        await w.commit(append(ids[0], 1, 1, ts=999))  # moves from the end to the front
        await w.commit(*create(ConversationId("new"), updated=1000))
        rest = await store.list(limit=50, cursor=first.cursor)
        found = [each.id for each in rest.rows]
        same(found, [id for id in expected[10:] if id != ids[0]], "a page after the list has changed")
        await refused(InvalidInput, store.list(cursor="no cursor"), "a cursor that is none")
        same((await store.list(search="nothing like it")).cursor, None, "the cursor of an empty list")


async def _list_pages(store: Store, limit: int) -> list[ConversationId]:
    page = await store.list(limit=limit)
    found = [each.id for each in page.rows]
    while page.cursor is not None:
        page = await store.list(limit=limit, cursor=page.cursor)
        same(0 < len(page.rows) <= limit, True, "that a page holds some rows, and no more than its limit")
        found.extend(each.id for each in page.rows)
    return found


@case(CASES)
async def search_looks_in_ids_and_titles(opener: Opener) -> None:
    titles = {"one": "50% off_now", "two": "Straße nach SÜDEN", "three": "50 x off now", "FOUR%": None}
    async with opened(opener) as store:
        w = await writer(store)
        for id, title in titles.items():
            await w.commit(*create(ConversationId(id), title=title))
        expected = {
            "50%": ["one"],
            "%": ["FOUR%", "one"],
            "off_n": ["one"],
            "_": ["one"],
            "four": ["FOUR%"],
            "THRE": ["three"],
            "STRASSE": ["two"],
            "süden": ["two"],
            "50": ["one", "three"],
            "'": [],
            "\\": [],
            "": ["FOUR%", "one", "three", "two"],
        }
        for search, ids in expected.items():
            same(sorted(await listed(store, search=search)), ids, f"the search for {search!r}")
        page = await store.list(search="o", limit=2)
        rest = await store.list(search="o", limit=2, cursor=page.cursor)
        found = sorted(each.id for each in (*page.rows, *rest.rows))
        same(found, ["FOUR%", "one", "three", "two"], "a search in pages")


@case(CASES)
async def changes_come_in_commit_order(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        x = await writer(store, SessionId("other"))
        first = await w.commit(*create(A), append(A, 1, 2))
        await x.commit(*create(C, session=SessionId("other")), append(C, 1, 1))
        second = await w.commit(*create(B), append(B, 1, 1), append(A, 3, 3), append(B, 2, 4))
        await w.commit(PutConversation(row=ConversationRow(id=A, session=S, title="t")))
        await w.commit(branch(A, 1, 1))
        third = await w.commit(append(A, 4, 4, branch=1))
        expected = [
            (first, Segment(A, 0, 0, 2)),
            (second, Segment(B, 0, 0, 1)),
            (second, Segment(A, 0, 2, 3)),
            (second, Segment(B, 0, 1, 4)),
            (third, Segment(A, 1, 3, 4)),
        ]
        found = [(each.commit, each.segment) for each in await store.changes(S, 0)]
        same(found, expected, "all changes")
        found = [(each.commit, each.segment) for each in await store.changes(S, first)]
        same(found, expected[1:], "those after the first commit")
        same(list(await store.changes(S, third)), [], "those after the last")
        page = await store.changes(S, first, limit=1)
        same(len(page), 3, "a page: the changes of one commit are not split")
        page = await store.changes(S, 0, limit=1)
        same([each.commit for each in page], [first], "a page of one")
        same(list(await store.changes(SessionId("none"), 0)), [], "the changes of no session")
        segment = Segment(B, 0, 0, 4)
        same(len(await store.read([segment])), 4, "the records that the changes name")


@case(CASES)
async def an_empty_conversation_can_be_opened(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        row = ConversationRow(id=A, session=S)
        await w.commit(PutSession(session=S, root=A), PutConversation(row=row))
        found = await store.open(A)
        same((found.branches, found.last, found.conversation), ((), 0, row), "what open() answers")
        await refused(ConversationNotFound, w.commit(append(A, 1, 1)), "an append without a branch")
        await w.commit(create(A)[2], append(A, 1, 1))
        same(await seqs(store, A), [1], "the records")
