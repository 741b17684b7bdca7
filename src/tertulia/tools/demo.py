"""Tools without any use but to be seen: what the demo model calls."""

import random
import time
from typing import Any

from ..records.parts import Data, Text
from ..records.record import Hit
from .base import tool
from .context import ToolContext


def now() -> str:
    """What time it is."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def roll(dice: int = 1) -> list[int]:
    """Roll dice."""
    return [random.randint(1, 6) for _ in range(min(max(dice, 0), 100))]


def chart() -> list[Any]:
    """Draw a chart of fixed numbers."""
    return [Text(text="a chart of three fixed numbers"), Data(name="chart_data", value=CHART)]


def search(query: str, context: ToolContext) -> str:
    """Search three fixed sentences."""
    words = set(query.lower().split())
    hits = [
        Hit(id=str(n), source="demo", title=title, snippet=text, score=float(len(found)))
        for n, (title, text) in enumerate(SENTENCES, 1)
        if (found := words & set(text.lower().rstrip(".").split()))
    ]
    hits.sort(key=lambda hit: -hit.score)
    context.retrieved(query, hits)
    return "\n".join(f"{hit.title}: {hit.snippet}" for hit in hits) or "nothing was found"


@tool(ask=True)
def publish(text: str) -> str:
    """Pretend to publish a text; it goes nowhere."""
    return f"published to nobody: {text}"


SENTENCES = (
    ("Log", "The log of a conversation is append-only."),
    ("Fork", "A fork of a conversation points into its parent's log."),
    ("Queue", "A steer waits in the queue until the tools have answered."),
)

CHART = {
    "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
    "data": {"values": [{"day": "Mon", "count": 3}, {"day": "Tue", "count": 7}, {"day": "Wed", "count": 5}]},
    "mark": "bar",
    "encoding": {"x": {"field": "day", "type": "nominal"}, "y": {"field": "count", "type": "quantitative"}},
}

DEMO_TOOLS = (now, roll, chart, search, publish)
"""What the demo model can call, for those who have no tools of their own."""
