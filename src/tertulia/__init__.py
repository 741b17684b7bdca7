"""An agent-session runtime: durable transcripts, queues, forks, approvals and events."""

from .records.errors import TertuliaError
from .session.attaching import attach
from .session.conversation import Conversation
from .session.host import Host
from .session.session import Session
from .tools.base import Tool, tool
from .tools.context import ToolContext

__all__ = ["Conversation", "Host", "Session", "TertuliaError", "Tool", "ToolContext", "attach", "tool"]
__version__ = "0.1.0"
