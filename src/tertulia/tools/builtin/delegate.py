"""delegate: a task for a sub-conversation."""

from ...records.errors import InvalidInput
from ..base import Tool, tool
from ..context import ToolContext


async def delegate(task: str, context: ToolContext, tools: list[str] | None = None) -> str:
    """Hand a self-contained task to a helper, and get its final answer.

    The helper knows nothing of this conversation: say in the task all that it needs. It has the same tools, or of
    these only the ones named in `tools`; it cannot delegate.
    """
    if context.nested:
        raise InvalidInput("a helper does not delegate", hint="do it yourself")
    reply = await context.prompt(
        task,
        opened=lambda id: context.progress({"state": "started", "conversation_id": id}),
        tools=_chosen(context.tools(), tools),
    )
    early = "" if reply.stop_reason == "end" else f"\n[the helper stopped early: {reply.stop_reason}]"
    return f"{reply.text}{early}".lstrip("\n")


def _chosen(present: tuple[Tool, ...], names: list[str] | None) -> list[Tool]:
    found = {tool.name: tool for tool in present if tool.fn is not delegate}
    unknown = [name for name in names or () if name not in found]
    if unknown:
        raise InvalidInput(
            "the helper cannot have " + ", ".join(map(repr, unknown)),
            hint="there are " + ", ".join(found) if found else "there are no tools for it",
        )
    return [tool for name, tool in found.items() if names is None or name in names]


DELEGATE = tool(delegate)
