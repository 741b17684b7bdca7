"""The tools that come with tertulia, in fixed order."""

from ..base import Tool
from .chart import CHART
from .delegate import DELEGATE
from .fetch import FETCH
from .files import EDIT, READ, WRITE
from .search import GLOB, GREP, LIST
from .shell import JOB, SHELL


def default_tools() -> tuple[Tool, ...]:
    """What `tools="default"` means. `fetch` is listed and switched off."""
    return (READ, WRITE, EDIT, LIST, GLOB, GREP, SHELL, JOB, DELEGATE, FETCH, CHART)
