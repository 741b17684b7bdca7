"""A program to be killed around the change of a file: `python -m tests.session.crash_rewind STORE FOLDER WHERE`.

It stands (`there`) where the change is durable and done (`written`), or where it is announced and not done yet.
"""

import asyncio
import sys
import threading
from typing import Any

from tertulia.session import changing
from tertulia.session.session import Session
from tertulia.testing import ScriptedModel, call, hold
from tests.session.crash_session import say


def stands(**_: Any) -> Any:
    say("there")
    threading.Event().wait()


async def main(path: str, folder: str, where: str) -> None:
    held = hold()
    if where == "announced":
        changing.replace = stands  # type: ignore[assignment]
    model = ScriptedModel([[call("write", path="a.txt", content="theirs\n")], held])
    session = await Session.open(model=model, store=path, tools="default", approvals="allow", cwd=folder)
    say("session", session.id)
    running = asyncio.create_task(session.prompt("Go."))
    if where == "written":
        await held.reached.wait()  # the result is durable before the model is asked again
        say("there")
    await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
