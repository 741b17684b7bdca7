"""What users need for their own tests: a scripted model, a clock that waits for nobody, the store conformance suite."""

from .clock import FakeClock
from .mcp import FakeMcpServer, FakeTool
from .mcp_oauth import FakeOAuthServer
from .model import Hold, ScriptedModel, ScriptExhausted, Stream, call, hold, texts
from .recorder import EventRecorder
from .store_conformance import store_conformance

__all__ = [
    "EventRecorder",
    "FakeClock",
    "FakeMcpServer",
    "FakeOAuthServer",
    "FakeTool",
    "Hold",
    "ScriptExhausted",
    "ScriptedModel",
    "Stream",
    "call",
    "hold",
    "store_conformance",
    "texts",
]
