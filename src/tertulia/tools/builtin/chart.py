"""A chart, as data: what shows the conversation draws it."""

from typing import Any, Literal

from ...records.errors import InvalidInput
from ...records.parts import Data, Text
from ..base import tool

POINTS = 10_000
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
MARKS = {"line": "line", "bar": "bar", "scatter": "point", "pie": "arc"}


def chart(
    kind: Literal["line", "bar", "scatter", "pie"],
    series: dict[str, list[float]],
    labels: list[str] | None = None,
    title: str = "",
) -> list[Any]:
    """Show numbers to the user as a chart.

    `series` maps each name to its values; `labels` names the positions on the x axis (the slices of a pie).
    """
    if not series or not any(series.values()):
        raise InvalidInput("a chart needs at least one series with values")
    if sum(map(len, series.values())) > POINTS:
        raise InvalidInput(f"a chart has at most {POINTS:,} values", hint="draw a sample, or sums of groups")
    for name, values in series.items():
        if labels is not None and len(values) != len(labels):
            raise InvalidInput(f"series {name!r} has {len(values)} values for {len(labels)} labels")
    what = ", ".join(f"{name} ({len(values)} values)" for name, values in series.items())
    said = Text(text=f"shown: a {kind} chart of {what}")
    return [said, Data(name="chart_data", value=_drawing(kind, series, labels, title))]


def _drawing(
    kind: str, series: dict[str, list[float]], labels: list[str] | None, title: str
) -> dict[str, Any]:
    """In Vega-Lite, which is what those draw who can draw."""
    rows = [
        {"x": labels[n] if labels is not None else n + 1, "y": value, "series": name}
        for name, values in series.items()
        for n, value in enumerate(values)
    ]
    along = {
        "field": "x",
        "type": "nominal" if labels is not None else "quantitative",
        "sort": None,
        "title": None,
    }
    up = {"field": "y", "type": "quantitative", "title": None}
    by_series = {"field": "series", "type": "nominal", "title": None}
    if kind == "pie":
        encoding = {"theta": up, "color": along}
    else:
        encoding = {"x": along, "y": up, **({"color": by_series} if len(series) > 1 else {})}
        if kind == "bar" and len(series) > 1:
            encoding["xOffset"] = {"field": "series"}
    return {
        "$schema": SCHEMA,
        "title": title,
        "data": {"values": rows},
        "mark": MARKS[kind],
        "encoding": encoding,
    }


CHART = tool(chart)
