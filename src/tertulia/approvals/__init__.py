"""Who may run what: a shell command read, rules and remembered answers looked up, a verdict. Nothing here asks."""

from .policy import Policy
from .question import Answer
from .rules import Rules

__all__ = ["Answer", "Policy", "Rules"]
