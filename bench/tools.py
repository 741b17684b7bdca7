"""What a tool call costs by itself, with its result recorded, in a turn in memory; what an approval check costs.

Beside: awaiting the function; for 10,000 grants the same check with 10.
"""

import time

from tertulia import Session
from tertulia.approvals.gate import Call as Checked
from tertulia.approvals.gate import judge
from tertulia.approvals.grant import Grant, Grants
from tertulia.approvals.rules import Rules
from tertulia.models.base import Call, Finished
from tertulia.records.ids import ConversationId, TurnId
from tertulia.session.calls import run as run_calls
from tertulia.session.engine import Ending, Turn
from tertulia.session.loop import LoopEngine
from tertulia.session.speech import answer, begin

from .harness import Goal, Result, Scale, awaitable, pick, rounds, timed
from .models import END, QUESTION, Answers, add

ROOT, COMMAND = "/project", "git status --short"
RULES = Rules(allow=["ls *", "cat *"], ask=["git push *"], deny=["rm -rf *"])


async def run(scale: Scale) -> list[Result]:
    times, repeats = pick(scale, 2, 200), pick(scale, 1, 15)
    few, many = _grants(10), _grants(pick(scale, 100, 10_000))
    engine = Calling(times)
    async with Session.open(engine=engine, model=Answers(), tools=[add]) as session:

        async def call() -> float:
            await session.prompt(QUESTION)
            return engine.took

        ours, floor, at_few, at_many, plain = await rounds(
            repeats,
            call,
            lambda: timed(times, lambda: add(2, 3)),
            lambda: timed(times, awaitable(lambda: _check(few, COMMAND))),
            lambda: timed(times, awaitable(lambda: _check(many, COMMAND))),
            lambda: timed(times, awaitable(lambda: _check(many, None))),
        )
    least, most = len(few.all()), len(many.all())
    goal, beside = Goal("ours", 50), f"µs, at {least} grants"
    return [
        Result("a tool call, in memory", ours * 1e3, "µs", floor * 1e3, "µs, awaiting the function"),
        Result(f"approval of a command, {least} grants", at_few * 1e3, "µs", goal=goal),
        Result(f"approval of a command, {most:,} grants", at_many * 1e3, "µs", at_few * 1e3, beside, goal),
        Result(f"approval of another tool, {most:,} grants", plain * 1e3, "µs", goal=goal),
    ]


class Calling(LoopEngine):
    """Each turn runs so many calls of `add`, one after the other, and keeps what one took."""

    def __init__(self, times: int) -> None:
        self.took = 0.0
        self._times = times

    async def run(self, turn: Turn) -> Ending:
        """Milliseconds a call, from the committed call to its committed result."""
        spent = 0.0
        for _ in range(self._times):
            begin(turn)
            called = await answer(turn, Finished(calls=(Call(name="add", args={"a": 2, "b": 3}),)))
            start = time.perf_counter()
            await run_calls(turn, called)
            spent += time.perf_counter() - start
        self.took = spent * 1e3 / self._times
        begin(turn)
        return Ending(last=END)


def _grants(count: int) -> Grants:
    """As many as that; one is for the command, one for the tool."""
    grants = Grants()
    keys = [("shell", "path", "git", "status"), ("write",)]
    keys += [("shell", "exact", "make", f"target-{number}") for number in range(count - len(keys))]
    for number, key in enumerate(keys):
        grants.add(Grant(id=f"grant_{number}", key=key, root=ROOT, decision="allow", scope="session"))
    return grants


def _check(grants: Grants, command: str | None) -> None:
    call = Checked(
        tool=("shell",) if command else ("write",), root=ROOT, mode="ask", command=command,
        conversation=ConversationId("conv_1"), turn=TurnId("turn_1"),
    )  # fmt: skip
    if judge(call, RULES, grants, 1).decision != "allow":
        raise AssertionError("the grant was not found")
