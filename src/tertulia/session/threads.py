"""Plain functions beside the loop."""

import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ..sandbox import threads

T = TypeVar("T")


async def in_thread(fn: Callable[..., T], args: dict[str, Any]) -> T:
    """In a thread of its own: it may block for ever, and must not hold up an exit then."""
    return await threads.in_thread("tool", partial(contextvars.copy_context().run, fn, **args))
