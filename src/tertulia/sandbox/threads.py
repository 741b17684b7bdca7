"""A call that may take long, in a thread of its own: it holds up neither the loop nor what the loop's executor does."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(
    name: str, call: Callable[[], Result], ended: Callable[[], None] = lambda: None
) -> Result:
    """When this is cancelled, the thread still runs to its end. `ended` is called in it, then."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if future.done():
            return  # nobody waits any more
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: Result | None = None
        problem: Exception | None = None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited; there is no exit from here
            problem = error if isinstance(error, Exception) else RuntimeError(f"it raised {error!r}")
        finally:
            ended()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, problem)

    try:
        threading.Thread(target=run, name=f"tertulia-{name}", daemon=True).start()
    except BaseException:
        ended()
        raise
    return await future
