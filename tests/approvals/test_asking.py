"""Answers: who gives them, how long they hold, what is stored of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tertulia import Session, tool
from tertulia.approvals import Answer, Policy, Rules
from tertulia.records.errors import ApprovalAlreadyAnswered, ApprovalNotFound, InvalidInput
from tertulia.session.journal import Put
from tertulia.store.base import GrantRow, PutGrant
from tertulia.testing import EventRecorder, FakeClock, ScriptedModel, call
from tests.approvals.kit import Shell, asked, asking, decisions, results, session, start, writes
from tests.session.kit import store_of

pytestmark = [pytest.mark.req("S2-08a", "S2-08b"), pytest.mark.timeout(30)]


@pytest.fixture(params=["sqlite", "jsonl"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "s.db") if request.param == "sqlite" else f"jsonl:{tmp_path / 'j'}"


async def say(made: Session, seen: EventRecorder, count: int, **answer: Any) -> Any:
    """Answer the approval number `count`."""
    approval = await asked(made, seen, count)
    await made.approvals.answer(approval.id, **answer)
    return approval


# ── grants ──


async def test_an_answer_without_a_scope_holds_for_the_session_and_is_kept(place: str) -> None:
    ran: list[str] = []
    async with session([writes("a"), "end", writes("b"), "end"], [asking(ran)], store=place) as (made, seen):
        prompt = start(made)
        approval = await say(made, seen, 1, decision="allow")
        await prompt
        await made.prompt("again")
        (grant,) = made.approvals.grants()
        assert (grant.key, grant.root, grant.scope, grant.decision) == (
            ("write",),
            str(Path.cwd()),
            "session",
            "allow",
        )
        assert approval.key == grant.key
        assert approval.options[1].label == f"Allow write in {Path.cwd()} for the session"
    async with session([writes("c"), "end", writes("d"), "end"], [asking(ran)], id=made.id, store=place) as (
        made,
        seen,
    ):
        assert made.approvals.grants() == [grant]
        assert await made.approvals.grants() == [grant]
        await made.prompt("after a restart")
        assert ran == ["a", "b", "c"]
        await made.approvals.revoke(grant.id)
        prompt = start(made)
        await say(made, seen, 1, option="deny")
        await prompt
        assert ran == ["a", "b", "c"]
    async with session([], [asking(ran)], id=made.id, store=place) as (made, _):
        assert made.approvals.grants() == []


async def test_a_session_grant_ends_with_the_session_and_an_always_grant_does_not(place: str) -> None:
    ran: list[str] = []
    for scope in ("session", "always"):
        script = [writes("a"), "end"]
        async with session(script, [asking(ran)], store=place) as (made, seen):
            prompt = start(made)
            await say(made, seen, 1, decision="allow", scope=scope)
            await prompt
        async with session([], [asking(ran)], store=place) as (other, _):
            assert [grant.scope for grant in other.approvals.grants()] == (
                ["always"] if scope == "always" else []
            )
    async with session([writes("b"), "end"], [asking(ran)], store=place) as (third, _):
        await third.prompt("not asked")
        assert ran[-1] == "b"
        await third.approvals.revoke(third.approvals.grants()[0].id)
    async with session([], [asking(ran)], store=place) as (last, _):
        assert last.approvals.grants() == []


async def test_one_limited_to_a_conversation_never_matches_elsewhere(place: str) -> None:
    ran: list[str] = []
    async with session([writes("a"), "end"], [asking(ran)], store=place) as (made, seen):
        prompt = start(made)
        await say(made, seen, 1, decision="allow", scope="conversation")
        await prompt
        other = await made.open_conversation()
    script = [writes("b"), "end", writes("c"), "end"]
    async with session(script, [asking(ran)], id=made.id, store=place) as (made, seen):
        await made.root.prompt("here")
        prompt = start(made.conversation(other.id))
        await say(made, seen, 1, option="deny")
        await prompt
        assert ran == ["a", "b"]


async def test_a_new_grant_of_the_same_key_replaces_the_expiry(place: str) -> None:
    clock, ran = FakeClock(), []
    script = [item for name in "abcd" for item in (writes(name), "end")]
    async with session(script, [asking(ran)], store=place, clock=clock) as (made, seen):
        for count, ttl in ((1, 60), (2, 600)):
            prompt = start(made)
            await say(made, seen, count, decision="allow", ttl=ttl)
            await prompt
            await clock.advance(61)
        (grant,) = made.approvals.grants()
        assert grant.expires == clock.now() + (600 - 61) * 1_000_000
        await made.prompt("still allowed")
        assert ran == ["a", "b", "c"]
        rows = await made._shared.store.grants(made.id)
        assert [row.expires for row in rows] == [grant.expires]  # the ended one went with the new one
    await clock.advance(600)
    async with session(["end"], [asking(ran)], id=made.id, store=place, clock=clock) as (made, _):
        assert made.approvals.grants() == []


async def test_a_wall_clock_that_steps_back_brings_no_grant_back_that_was_swept() -> None:
    clock, ran = FakeClock(), []
    async with session([writes("a"), "end", writes("b")], [asking(ran)], clock=clock) as (made, seen):
        prompt = start(made)
        await say(made, seen, 1, decision="allow", ttl=60)
        await prompt
        await clock.advance(61)
        assert made.approvals.grants() == []
        clock.step_back(3600)
        prompt = start(made)
        await say(made, seen, 2, option="deny")
        await prompt
        assert ran == ["a"]


async def test_deny_beats_allow() -> None:
    ran: list[str] = []
    script = [writes("a"), "end", writes("b"), "end"]
    async with session(script, [asking(ran)]) as (made, seen):
        other = await made.open_conversation()
        prompt = start(made)
        await say(made, seen, 1, decision="allow", scope="session")
        await prompt
        (allowed,) = made.approvals.grants()
        made.approvals._grants.add(
            replace(allowed, id="grant_x", decision="deny")
        )  # as another process leaves it
        await other.prompt("x")
        assert await results(other) == [("denied", "write is denied by an earlier answer")]


async def test_a_remembered_answer_settles_what_was_asked_before_it() -> None:
    ran: list[str] = []
    async with session([writes("a", "b"), "end"], [asking(ran)]) as (made, seen):
        prompt = start(made)
        await say(made, seen, 2, option="allow_session")
        await prompt
        assert sorted(ran) == ["a", "b"]
        assert sorted(await decisions(made)) == [("allow", "once", "grant"), ("allow", "session", "user")]


@pytest.mark.parametrize("retention", ["headers_only", "none"])
async def test_where_no_bodies_are_kept_grants_are_memory_only(place: str, retention: str) -> None:
    ran: list[str] = []
    script = [writes("a"), "end", writes("b"), "end"]
    async with session(script, [asking(ran)], store=place, retention=retention) as (made, seen):
        prompt = start(made)
        await say(made, seen, 1, decision="allow", scope="always")
        await prompt
        await made.prompt("here it holds")
        assert ran == ["a", "b"]
        assert await made._shared.store.grants(made.id) == []
        made.approvals.revoke(made.approvals.grants()[0].id)


async def test_under_a_ttl_a_grant_goes_with_the_records(place: str) -> None:
    clock = FakeClock()
    async with session([writes("a"), "end"], [asking([])], store=place, retention="ttl:60", clock=clock) as (
        made,
        seen,
    ):
        prompt = start(made)
        await say(made, seen, 1, decision="allow")
        await prompt
        (row,) = await made._shared.store.grants(made.id)
        assert isinstance(row, GrantRow)
        assert row.expires is not None
        assert row.expires <= clock.now() + 60_000_000
        await clock.advance(61)
        assert made.approvals.grants() == []


async def test_a_stored_grant_that_cannot_be_read_grants_nothing(place: str) -> None:
    async with session([writes("a"), "end"], [asking([])], store=place) as (made, seen):
        prompt = start(made)
        await say(made, seen, 1, decision="allow")
        await prompt
        journal = made.root._journal
        for id, body in (("odd", b"{"), ("old", b'{"key":5}')):
            await journal.put(Put(ops=[PutGrant(row=GrantRow(id=id, session=made.id, body=body))]))
    async with session([writes("b"), "end"], [asking([])], id=made.id, store=place) as (made, _):
        assert len(made.approvals.grants()) == 1
        await made.prompt("not asked")


async def test_a_grant_is_for_the_folder_that_it_was_given_in(tmp_path: Path, place: str) -> None:
    ran: list[str] = []
    async with session([writes("a"), "end"], [asking(ran)], store=place) as (made, seen):
        prompt = start(made)
        await say(made, seen, 1, decision="allow", scope="always")
        await prompt
    async with session([writes("b"), "end"], [asking(ran)], store=place, cwd=tmp_path) as (made, seen):
        prompt = start(made)
        await say(made, seen, 1, option="deny")
        await prompt
        assert ran == ["a"]


# ── commands ──


async def test_what_is_granted_for_a_command_is_its_path() -> None:
    shell = Shell()
    commands = [
        "git log -3",
        "git log --oneline",
        "git status",
        "git log; rm x",
        "python a.py",
        "python a.py",
        "python b.py",
    ]
    script = [item for command in commands for item in ([call("shell", command=command)], "end")]
    async with session(script, [shell.tool]) as (made, seen):
        keys = []
        for count, command in enumerate(
            ["git log -3", "git status", "git log; rm x", "python a.py", "python b.py"], 1
        ):
            while True:
                prompt = start(made)
                await asyncio.wait(
                    [prompt, asyncio.ensure_future(seen.wait_for("approval_request", count))],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not prompt.done():
                    break
            approval = made.approvals.pending()[0]
            assert (approval.summary, approval.args) == (command, {"command": command})
            keys.append(approval.key[1:])
            await made.approvals.answer(approval.id, "allow_session")
            await prompt
        assert keys == [
            ("path", "git", "log"), ("path", "git", "status"), ("exact", "rm", "x"), ("exact", "python", "a.py"),
            ("exact", "python", "b.py"),
        ]  # fmt: skip
        assert shell.ran == commands


async def test_the_question_says_what_it_is_about() -> None:
    shell = Shell()
    script = [[call("shell", command="git log\u202e -3")], [call("shell", command="gіt log")], "end"]
    async with session(script, [shell.tool]) as (made, seen):
        prompt = start(made)
        approval = await asked(made, seen)
        assert approval.summary == "git log\\u{202e} -3"
        assert "exactly `git log\\u{202e} -3`" in approval.options[1].label
        await made.approvals.answer(approval.id, "deny")
        approval = await asked(made, seen, 2)
        assert approval.summary.endswith("[letters of several alphabets]")
        await made.approvals.answer(approval.id, "deny")
        await prompt
        assert shell.ran == []


async def test_a_policy_of_rules_and_tools() -> None:
    shell, ran = Shell(), []

    @tool
    async def free() -> str:
        """Asks nobody by itself."""
        return "free"

    policy = Policy(
        mode="deny",
        rules=Rules(allow=["git status"], deny=["rm *"]),
        tools={"write": "allow", "free": "deny"},
        message="--approvals allow lets it run",
    )
    script = [
        [call("shell", command="git status"), call("shell", command="rm x"), call("shell", command="make"),
         call("free"),
         *writes("a")],
        "end",
    ]  # fmt: skip
    async with session(script, [shell.tool, free, asking(ran)], approvals=policy) as (made, _):
        await made.prompt("go")
        assert sorted(await results(made)) == [
            ("denied", "free is not allowed here: --approvals allow lets it run"),
            ("denied", "shell is denied by the rule `rm *`"),
            ("denied", "shell is not allowed here: --approvals allow lets it run"), ("ok", "ran git status"),
            ("ok", "wrote a"),
        ]  # fmt: skip
        assert (shell.ran, ran) == (["git status"], ["a"])
        decided = {each.call_id: each for each in await made.records() if each.type == "approval"}
        calls = [each for each in await made.transcript() if each.type == "tool_call"]
        assert [(decided[each.call_id].decision, decided[each.call_id].by) for each in calls] == [
            ("allow", "rule"), ("deny", "rule"), ("deny", "mode"), ("deny", "mode"), ("allow", "mode"),
        ]  # fmt: skip
        assert decided[calls[1].call_id].feedback == "shell is denied by the rule `rm *`"
        assert decided[calls[0].call_id].key == ("shell", "exact", "git", "status")


@pytest.mark.parametrize(
    "bad",
    [5, "maybe", None, Policy(mode="x"), Policy(rules=5), Policy(tools=5), Policy(tools={"a": "x"})],  # type: ignore[arg-type]
)
async def test_a_policy_that_is_none(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        await Session.open(approvals=bad)


# ── who answers ──


@pytest.mark.parametrize(
    ("said", "decided"),
    [
        (Answer(decision="allow"), ("allow", "session", "handler")),
        (Answer(decision="deny", scope="turn", feedback="no"), ("deny", "turn", "handler")),
        (Answer(decision="allow", scope="once"), ("allow", "once", "handler")),
        ("allow_session", ("allow", "session", "handler")),
        (True, ("allow", "once", "handler")),
        (Answer(decision="allow", ttl=-1), ("deny", "once", "handler")),
        (Answer(decision="allow", scope="once", ttl=1), ("deny", "once", "handler")),
    ],
)
async def test_what_a_function_may_say(said: Any, decided: Any) -> None:
    async def handler(approval: Any) -> Any:
        return said

    async with session([writes("a"), "end"], [asking([])], approvals=Policy(mode=handler)) as (made, _):
        await made.prompt("go")
        assert await decisions(made) == [decided]


async def test_a_person_may_be_quicker_than_a_function() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(approval: Any) -> bool:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return False

    ran: list[str] = []
    async with session([writes("a"), "end"], [asking(ran)], approvals=handler) as (made, seen):
        prompt = start(made)
        async with asyncio.timeout(10):
            await begun.wait()
            await say(made, seen, 1, option="allow_once")
            await prompt
            await ended.wait()  # it is not left running
        assert ran == ["a"]


async def test_of_two_answers_at_once_the_first_wins() -> None:
    ran: list[str] = []
    async with session([writes("a"), "end"], [asking(ran)]) as (made, seen):
        prompt = start(made)
        approval = await asked(made, seen)
        answers = [made.approvals.answer(approval.id, each) for each in ("allow_once", "deny", "deny")]
        done = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(each) for each in done] == [type(None), ApprovalAlreadyAnswered, ApprovalAlreadyAnswered]
        await prompt
        assert ran == ["a"]
        with pytest.raises(ApprovalNotFound):
            await made.approvals.answer("appr_other", "deny")


@pytest.mark.parametrize("watched", [False, True])
async def test_one_warning_when_nobody_is_there_to_be_asked(watched: bool) -> None:
    model = ScriptedModel([writes("a", "b"), "end"])
    async with Session.open(model=model, tools=[asking([])]) as made:
        watching = EventRecorder(made)
        if watched:
            await watching.__aenter__()
        prompt = start(made)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(made.approvals.pending()) == 2
        async with EventRecorder(made.root) as late:
            for approval in made.approvals.pending():
                await made.approvals.answer(approval.id, "deny")
            await prompt
            await late.wait_for("done")
            warned = [event for event in late.of("warning") if event.data["code"] == "approval_waits"]
            assert len(warned) == (0 if watched else 1)
        if watched:
            await watching.__aexit__(None, None, None)
            assert not watching.of("warning")


async def test_the_warning_names_a_question_that_waits_still() -> None:
    async with Session.open(model=ScriptedModel([writes("a", "b"), "end"]), tools=[asking([])]) as made:
        prompt = start(made)
        for _ in range(100):
            await asyncio.sleep(0)
        first, second = made.approvals.pending()
        await made.approvals.answer(second.id, "deny")
        async with EventRecorder(made.root) as late:
            warning = await late.wait_for("warning")
            assert warning.data["message"].endswith(f"answer {first.id}")
            await made.approvals.answer(first.id, "deny")
            await prompt


async def test_a_call_begins_only_when_its_permission_is_durable(tmp_path: Path) -> None:
    """Else a crash in between would have it asked about again, and run twice."""
    ran: list[str] = []
    async with (
        store_of("sqlite", tmp_path) as store,
        session([writes("a"), "end"], [asking(ran)], store=store) as (made, seen),
    ):
        prompt = start(made)
        approval = await asked(made, seen)
        store.hold()
        await made.approvals.answer(approval.id, "allow_once")
        await store.waiting()
        for _ in range(20):
            await asyncio.sleep(0)
        assert ran == []
        store.let_go()
        await prompt
        assert ran == ["a"]


async def test_what_a_mode_decides_is_durable_before_the_call_begins(tmp_path: Path) -> None:
    """An auditor finds a decision for whatever a call has done."""
    ran: list[str] = []
    async with (
        store_of("sqlite", tmp_path) as store,
        session([writes("a"), "end"], [asking(ran)], store=store, approvals="allow") as (made, _),
    ):
        store.hold()
        prompt = start(made)
        for _ in range(2):  # the turn's start, and its call
            await store.waiting()
            store.let_one()
        await store.waiting()
        for _ in range(20):
            await asyncio.sleep(0)
        assert ran == []
        store.let_go()
        await prompt
        assert ran == ["a"]
        assert await decisions(made) == [("allow", "once", "mode")]


async def test_what_a_grant_decides_is_recorded() -> None:
    ran: list[str] = []
    script = [writes("a"), "end", writes("b"), "end"]
    async with session(script, [asking(ran)]) as (made, seen):
        prompt = start(made)
        await made.approvals.answer((await asked(made, seen)).id, "allow_session")
        await prompt
        await made.prompt("again")
        assert ran == ["a", "b"]
        assert await decisions(made) == [("allow", "session", "user"), ("allow", "once", "grant")]


async def test_the_feedback_of_a_no_reaches_the_model() -> None:
    model = ScriptedModel([writes("a"), "end"])
    async with Session.open(model=model, tools=[asking([])]) as made, EventRecorder(made) as seen:
        prompt = start(made)
        await say(made, seen, 1, decision="deny", feedback="use the other file")
        await prompt
        assert model.requests[1].messages[-1].text == "use the other file"
        assert await results(made) == [("denied", "use the other file")]
