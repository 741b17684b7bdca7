"""Plain functions beside the loop."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(fn: Callable[..., T], args: dict[str, Any]) -> T:
    """In a thread of its own: it may block for ever, and must not hold up an exit then."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(fn, **args)
        except BaseException as raised:  # noqa: BLE001 - handed over to the loop, where it is raised
            error = raised if isinstance(raised, Exception) else RuntimeError(f"the tool raised {raised!r}")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="tertulia-tool", daemon=True).start()
    return await done
