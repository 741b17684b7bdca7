"""Approvals of a Session: calls that wait for a person, their answers, and what is remembered of these."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec

from ..approvals.gate import Call, Verdict, judge
from ..approvals.grant import Grant, Grants
from ..approvals.policy import Handler, Policy, make_policy
from ..approvals.question import Answer, Approval, Scope, checked, choose, options, summary
from ..records.clock import SYSTEM_CLOCK, Clock
from ..records.errors import ApprovalAlreadyAnswered, ApprovalNotFound, InvalidInput, TertuliaError
from ..records.event import WarningEvent
from ..records.ids import CallId, TurnId, new_item_id
from ..records.record import Approval as ApprovalRecord
from ..records.record import ToolCall
from ..store.base import DropGrant, GrantRow, Op, PutGrant
from ..tools.base import Tool
from .engine import Turn
from .journal import Committed, Journal, Put

T = TypeVar("T")

REMEMBERED = 1000
"""How many answered approvals are known as such, rather than as none."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    decision: Literal["allow", "deny", "cancelled"]
    scope: Scope = "once"
    expires: int | None = None
    by: str = "user"
    feedback: str | None = None


class Asked:
    """A question under way. `resume` takes up again the turn that a restart has left with it."""

    __slots__ = ("answer", "approval", "committed", "record", "resume", "root", "taken", "turn")

    def __init__(
        self,
        approval: Approval,
        record: ApprovalRecord,
        root: str,
        turn: Turn,
        committed: "asyncio.Future[Any]",
    ) -> None:
        self.approval = approval
        self.record = record
        self.root = root
        self.turn = turn
        self.committed = committed
        self.answer: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        self.resume: Callable[[], Awaitable[None]] | None = None
        self.taken = False  # someone's answer is taking it up


class Present(list[T]):
    """What there is at this moment. It can be awaited too."""

    def __await__(self) -> "Generator[None, None, Present[T]]":
        yield from ()
        return self


class Approvals:
    """One for all conversations of a Session."""

    def __init__(self, given: Any = "ask", timeout: float | None = None) -> None:
        self._policy: Policy = make_policy(given)
        seconds: object = timeout
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise InvalidInput(f"approval_timeout is {timeout!r}", hint="seconds, or None to wait for ever")
        self._timeout = timeout
        self._open: dict[str, Asked] = {}
        self._adopted: dict[tuple[TurnId, CallId], Asked] = {}  # until their turn gets to them again
        self._answered: dict[str, None] = {}
        self._grants = Grants()
        self._stored: set[str] = set()  # the grants that the store has
        self._before: dict[str, Grant | None] = {}  # what each grant replaced whose commit is under way
        self.clock: Clock = SYSTEM_CLOCK
        self.journal: Callable[[], Journal]  # through which a grant is revoked

    # ── what callers use ──

    def pending(self) -> Present[Approval]:
        """The calls that wait for an answer."""
        return Present(asked.approval for asked in self._open.values() if asked.committed.done())

    def grants(self) -> Present[Grant]:
        """The answers that hold for more than one call."""
        self._grants.sweep(self.clock.now())
        return Present(self._grants.all())

    def revoke(self, grant_id: str) -> "asyncio.Future[Any]":
        """From now on the tool asks again; durable when awaited."""
        if self._grants.drop(grant_id) is None:
            raise ApprovalNotFound(f"no grant {grant_id}", hint="grants() lists those that there are")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        if grant_id not in self._stored:
            return done
        self._stored.discard(grant_id)
        return self.journal().put(Put(ops=[DropGrant(id=grant_id)]))

    async def answer(
        self,
        id: str,
        option: str | None = None,
        *,
        decision: Literal["allow", "deny"] | None = None,
        scope: Scope | None = None,
        ttl: float | None = None,
        feedback: str | None = None,
    ) -> None:
        """Decide. The first answer wins; one without a scope holds for the session."""
        asked = self._find(id)
        said = Answer(decision=decision or "deny", scope=scope, ttl=ttl, feedback=feedback)
        given = choose(asked.approval.options, option, said if option or decision is not None else None)
        decided = _decided(given, asked.turn.clock.now())
        if asked.resume is not None:
            await self._taken_up(asked)
            asked = self._find(id)  # a rule may have decided meanwhile
        deadline = asked.approval.deadline
        if deadline is not None and deadline <= asked.turn.clock.now():
            self._settle(asked, _too_late())
            raise ApprovalAlreadyAnswered(f"the deadline of approval {id} has passed, which means no")
        self._settle(asked, decided)

    async def _taken_up(self, asked: Asked) -> None:
        """The turn that a restart has left goes on, for the first who answers."""
        if asked.taken:
            raise ApprovalAlreadyAnswered(f"approval {asked.approval.id} is being answered")
        asked.taken = True
        try:
            assert asked.resume is not None
            await asked.resume()
        except BaseException:
            asked.taken = False  # nothing came of it
            raise

    # ── what the Session uses ──

    def load(self, rows: Iterable[GrantRow], clock: Clock) -> None:
        """The grants that the store has. What has ended, or cannot be read, goes with the next one that is stored."""
        self.clock = clock
        for row in rows:
            self._stored.add(row.id)
            with suppress(msgspec.MsgspecError):
                self._grants.add(_grant_of(row))

    def adopt(
        self, turn: Turn, call: ToolCall, record: ApprovalRecord, resume: Callable[[], Awaitable[None]]
    ) -> None:
        """A question that was open when the process ended is open again."""
        tool = turn.toolbox().get(call.name)
        verdict = self._verdict(turn, call, tool) if tool is not None else None
        root = verdict.root if verdict is not None else turn.cwd
        approval = Approval(
            id=record.approval, conversation_id=turn.journal.log.id, turn_id=turn.id, call_id=call.call_id,
            tool=call.name, args=call.args, summary=record.summary, key=record.key,
            options=options(record.key, root), deadline=record.expires,
        )  # fmt: skip
        stands: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        stands.set_result(None)
        asked = Asked(approval, record, root, turn, stands)
        asked.resume = resume
        self._open[approval.id] = self._adopted[turn.id, call.call_id] = asked
        turn.asked[call.call_id] = record
        turn.at_end.append(lambda: self._forget(asked))

    async def gate(self, turn: Turn, call: ToolCall, tool: Tool) -> str | None:
        """None when the call may run, else what the model reads instead of a result."""
        verdict = self._verdict(turn, call, tool)
        asked = self._adopted.pop((turn.id, call.call_id), None)
        if asked is None and verdict.decision != "ask":
            return await self._judged(turn, call, tool, verdict)
        if asked is None:
            asked = self._ask(turn, call, tool, verdict)
        elif verdict.decision != "ask" and not asked.answer.done():
            self._settle(asked, Decided(decision=verdict.decision, by=verdict.by))
        answer = await self._wait(asked)
        if answer.decision == "allow":
            return None
        return answer.feedback or f"the user did not allow {tool.name}"

    # ── inside ──

    def _find(self, id: str) -> Asked:
        if id in self._answered:
            raise ApprovalAlreadyAnswered(f"approval {id} was answered before")
        if id not in self._open:
            raise ApprovalNotFound(f"no approval {id} is waiting", hint="pending() lists those that are")
        return self._open[id]

    def _verdict(self, turn: Turn, call: ToolCall, tool: Tool) -> Verdict:
        command = call.args.get(tool.command) if tool.command is not None else None
        mode = self._policy.mode_of(tool.name, tool.server, tool.ask)
        key = (tool.name,) if tool.server is None else (tool.server, tool.name)
        of = Call(
            tool=key, root=turn.cwd, mode=mode, command=command if isinstance(command, str) else None,
            conversation=turn.journal.log.id, turn=turn.id,
        )  # fmt: skip
        if mode == "allow" and not tool.ask and of.command is None:
            return Verdict(decision="allow", key=key, root=turn.cwd, by="nobody")
        return judge(of, self._policy.rules, self._grants, turn.clock.now())

    async def _judged(self, turn: Turn, call: ToolCall, tool: Tool, verdict: Verdict) -> str | None:
        """What a grant, a rule or the mode decides is recorded like an answer, and before the call has any effect."""
        refusal = _refusal(self._policy, tool, verdict) if verdict.decision == "deny" else None
        if verdict.by != "nobody":
            record = ApprovalRecord(
                seq=0, ts=0, turn=turn.id, approval=_new_id(), phase="decided", call_id=call.call_id,
                tool=call.name, key=verdict.key, decision="deny" if refusal else "allow", scope="once",
                by=verdict.by, feedback=refusal,
            )  # fmt: skip
            await asyncio.shield(turn.journal.put(Put([record], turn=turn.id)))
        return refusal

    def _ask(self, turn: Turn, call: ToolCall, tool: Tool, verdict: Verdict) -> Asked:
        command = call.args.get(tool.command) if tool.command is not None else None
        seconds = self._timeout
        approval = Approval(
            id=_new_id(), conversation_id=turn.journal.log.id, turn_id=turn.id,
            call_id=call.call_id, tool=call.name, args=call.args, key=verdict.key,
            summary=summary(call.name, call.args, command if isinstance(command, str) else None),
            options=options(verdict.key, verdict.root),
            deadline=turn.clock.now() + int(seconds * 1e6) if seconds is not None else None,
        )  # fmt: skip
        record = ApprovalRecord(
            seq=0, ts=0, turn=turn.id, approval=approval.id, phase="asked", call_id=call.call_id, tool=call.name,
            summary=approval.summary, key=approval.key, expires=approval.deadline,
        )  # fmt: skip
        committed = turn.journal.put(Put([record], turn=turn.id))
        asked = Asked(approval, record, verdict.root, turn, committed)
        # Known before it shows, so that whoever sees the event can answer at once.
        self._open[approval.id] = asked
        turn.asked[call.call_id] = record
        running = turn.open_calls.get(call.call_id)
        if running is not None and running.name != call.name:  # it is a server that asks, while the call runs
            turn.midway.add(call.call_id)
        return asked

    async def _wait(self, asked: Asked) -> Decided:
        turn, call = asked.turn, asked.approval.call_id
        consulting: asyncio.Task[None] | None = None
        try:
            await asyncio.shield(asked.committed)
            turn.waiting.add(call)
            turn.waits()
            consulting = asyncio.create_task(self._consult(asked), name="tertulia-approval")
            decided = await asked.answer
        except asyncio.CancelledError:
            if not turn.left:
                self._record(asked, Decided(decision="cancelled", by="cancel"))
            raise
        finally:
            self._close(asked)
            if not any(each.turn is turn and each.approval.call_id == call for each in self._open.values()):
                turn.waiting.discard(call)
            if consulting is not None:
                consulting.cancel()
        recorded = self._record(asked, decided)
        await turn.slot()
        try:
            await asyncio.shield(recorded)  # a call that may have begun is never asked about again
        except TertuliaError:  # the turn may go on all the same, so the question ends here
            if turn.asked.get(call) is asked.record:
                self._record(asked, Decided(decision="cancelled", by="cancel"))
            raise
        return decided

    async def _consult(self, asked: Asked) -> None:
        """The function's answer, or the deadline's, which is no, whichever comes first."""
        handler, turn = self._policy.handler, asked.turn
        waits: list[asyncio.Task[Decided]] = []
        if asked.approval.deadline is not None:
            waits.append(asyncio.create_task(_expire(turn, asked.approval.deadline)))
        if handler is not None:
            waits.append(asyncio.create_task(_handled(handler, asked.approval, turn)))
        elif not turn.journal.wanted:
            _warn(turn, asked.approval)
        if not waits:
            return
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._settle(asked, next(iter(done)).result())
        finally:
            for each in waits:
                each.cancel()

    def _settle(self, asked: Asked, decided: Decided) -> None:
        if not asked.answer.done():
            self._close(asked)
            asked.answer.set_result(decided)

    def _close(self, asked: Asked) -> None:
        """It waits no more, whatever came of it."""
        if self._open.pop(asked.approval.id, None) is not None:
            self._answered[asked.approval.id] = None
            if len(self._answered) > REMEMBERED:
                del self._answered[next(iter(self._answered))]
        log = asked.turn.journal.log
        if log.notice is not None:  # it names a question: one that waits still
            left = next((each for each in self._open.values() if each.turn.journal.log is log), None)
            log.notice = _notice(left.turn, left.approval) if left is not None else None

    def _forget(self, asked: Asked) -> None:
        """Its turn is over, or is left as it was found."""
        self._open.pop(asked.approval.id, None)
        self._adopted.pop((asked.turn.id, asked.approval.call_id), None)

    def _record(self, asked: Asked, decided: Decided) -> Committed:
        """The decision and, where it holds for more than this call, its grant, in one commit."""
        turn, approval = asked.turn, asked.approval
        if turn.asked.get(approval.call_id) is asked.record:  # a server may ask twice in one call
            del turn.asked[approval.call_id]
        record = ApprovalRecord(
            seq=0, ts=0, turn=turn.id, approval=approval.id, phase="decided", call_id=approval.call_id,
            tool=approval.tool, key=approval.key, decision=decided.decision, scope=decided.scope,
            expires=decided.expires, by=decided.by, feedback=decided.feedback,
        )  # fmt: skip
        put = Put([record], turn=turn.id)
        put.undo = lambda: turn.asked.update({approval.call_id: asked.record})  # the turn's end closes it
        if decided.decision != "cancelled" and decided.scope != "once":
            grant = Grant(
                id=approval.id.replace("appr", "grant", 1), key=approval.key, root=asked.root,
                decision=decided.decision, scope=decided.scope, expires=decided.expires,
                conversation=approval.conversation_id if decided.scope == "conversation" else None,
                turn=turn.id if decided.scope == "turn" else None,
            )  # fmt: skip
            self._remember(turn, grant, put)
        return turn.journal.put(put)

    def _remember(self, turn: Turn, grant: Grant, put: Put) -> None:
        """The grant holds from now on. The store is told of it, and of those that it replaces or that have ended."""
        retention = turn.journal.retention_of(turn.id)
        if retention.kind == "ttl":  # its words are content, and go with the records
            end = turn.clock.now() + retention.ttl * 1_000_000
            grant = msgspec.structs.replace(grant, expires=min(grant.expires or end, end))
        self._grants.sweep(turn.clock.now())
        before = self._grants.all()
        self._grants.add(grant)
        held = {each.id for each in self._grants.all()}
        gone = self._stored - held
        self._stored -= gone
        ops: list[Op] = [DropGrant(id=id) for id in sorted(gone)]
        for asked in [each for each in self._open.values() if _answers(grant, each)]:
            self._settle(asked, Decided(decision=grant.decision, by="grant"))
        if grant.scope == "turn":
            turn.at_end.append(lambda: self._grants.drop(grant.id))
        elif retention.bodies:
            self._stored.add(grant.id)
            ops.append(PutGrant(row=_row_of(grant, turn)))
        self._before[grant.id] = next((each for each in before if each.id not in held), None)
        closed = put.undo

        def undo() -> None:
            self._take_back(grant, gone)
            if closed is not None:
                closed()

        put.ops, put.undo = tuple(ops), undo
        put.committed.add_done_callback(lambda _: self._before.pop(grant.id, None))

    def _take_back(self, grant: Grant, gone: set[str]) -> None:
        """Its commit failed: it holds no more, and what it replaced holds again. What it has settled stays settled."""
        self._stored.discard(grant.id)
        self._stored |= gone
        before = self._before.pop(grant.id, None)
        if self._grants.drop(grant.id) is not None:
            if before is not None:
                self._grants.add(before)
            return
        for id, replaced in self._before.items():  # that one's commit may fail too
            if replaced is not None and replaced.id == grant.id:
                self._before[id] = before


def _new_id() -> str:
    return new_item_id().replace("item", "appr")


def _refusal(policy: Policy, tool: Tool, verdict: Verdict) -> str:
    if verdict.why:
        return f"{tool.name} is denied by {verdict.why}"
    more = f": {policy.message}" if policy.message else ""
    return f"{tool.name} is not allowed here{more}"


def _answers(grant: Grant, asked: Asked) -> bool:
    """Whether it answers a question that was asked before it was given."""
    approval, turn = asked.approval, asked.turn
    here = asked.resume is None or turn.task is not None  # else nobody has taken it up again
    same = here and (grant.root, grant.key) == (asked.root, approval.key)
    return same and grant.holds(approval.conversation_id, turn.id, turn.clock.now())


def _row_of(grant: Grant, turn: Turn) -> GrantRow:
    return GrantRow(
        id=grant.id,
        session=None if grant.scope == "always" else turn.journal.session_id,
        conversation=grant.conversation,
        expires=grant.expires,
        body=msgspec.json.encode(
            {"key": grant.key, "root": grant.root, "decision": grant.decision, "scope": grant.scope}
        ),
    )


def _grant_of(row: GrantRow) -> Grant:
    fields = msgspec.json.decode(row.body, type=dict[str, Any])
    given = {"id": row.id, "conversation": row.conversation, "expires": row.expires}
    return msgspec.convert({**fields, **given}, Grant)


def _decided(answer: Answer, now: int, by: str = "user") -> Decided:
    scope = answer.scope or "session"
    if answer.ttl is not None and scope == "once":
        raise InvalidInput("ttl is for an answer that is remembered", hint="give a scope, such as session")
    return Decided(
        decision=answer.decision,
        scope=scope,
        expires=now + int(answer.ttl * 1e6) if answer.ttl is not None else None,
        by=by,
        feedback=answer.feedback,
    )


def _too_late() -> Decided:
    return Decided(decision="deny", by="deadline", feedback="nobody answered in time")


async def _expire(turn: Turn, deadline: int) -> Decided:
    await turn.clock.sleep(max(0.0, (deadline - turn.clock.now()) / 1e6))
    return _too_late()


async def _handled(handler: Handler, approval: Approval, turn: Turn) -> Decided:
    """What a function in a person's place says: yes or no to this call, an option's id, or an Answer."""
    try:
        said = await handler(approval)
        if isinstance(said, bool):
            said = Answer(decision="allow" if said else "deny", scope="once")
        given = checked(said) if isinstance(said, Answer) else choose(approval.options, said, None)
        return _decided(given, turn.clock.now(), "handler")
    except Exception as error:  # noqa: BLE001 - a handler that fails allows nothing, and says why
        return Decided(decision="deny", by="handler", feedback=f"the approval handler failed: {error}")


def _warn(turn: Turn, approval: Approval) -> None:
    """Nobody is there to be asked: whoever comes first is told."""
    turn.journal.log.notice = notice = _notice(turn, approval)
    turn.emit(notice)


def _notice(turn: Turn, approval: Approval) -> WarningEvent:
    text = f"{approval.tool} waits for an approval, and nobody follows the events: answer {approval.id}"
    return WarningEvent(code="approval_waits", message=text, **turn.common())
