"""A program to be killed in the middle of a conversation: `python -m tests.session.crash_session PATH WHERE`.

It says in lines what was acknowledged to it: `session ID`, `receipt ID TEXT`, `reply TEXT`, `ran N` before a tool
does its work, and `there` when it stands where it is to be killed.
"""

import asyncio
import os
import sys
from typing import Any

from tertulia.session.session import Session
from tertulia.testing import ScriptedModel, Stream, call, hold


def say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


async def look(n: int) -> str:
    say("ran", str(n))
    if n:
        await asyncio.Event().wait()
    return f"saw {n}"


async def main(path: str, where: str) -> None:
    held = hold()
    scripts: dict[str, list[Any]] = {
        "stream": [Stream(["half an answer", held])],
        "batch": [[call("look", n=0), call("look", n=1), call("look", n=2)]],
        "queue": [held],
    }
    model = ScriptedModel(["fine", *scripts[where]])
    session = await Session.open(model=model, store=path, tools=[look])
    say("session", session.id)
    say("reply", str(await session.prompt("before")))
    seen = session.events()
    seen.start()
    running = asyncio.create_task(session.prompt("killed", id="mine"))
    if where == "batch":
        async for event in seen:  # what is shown is stored
            if event.type == "tool_result":
                say("there")
    else:
        await held.reached.wait()  # in a process that is killed when it takes too long
        if where == "queue":
            for text in ("one", "two"):
                receipt = await session.follow_up(text)
                say("receipt", receipt.id, text)
        say("there")
    await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
