"""Who may run: `max_running` slots of a Session, first come first served, one ticket for each conversation."""

from collections.abc import Callable


class Ticket:
    """A conversation's wish to run a turn. `grant` is called once, when a slot is its own."""

    __slots__ = ("grant", "holds", "waiting")

    def __init__(self, grant: Callable[[], None]) -> None:
        self.grant = grant
        self.waiting = False
        self.holds = False


class Scheduler:
    """Nothing here awaits, so taking and freeing a slot is atomic."""

    def __init__(self, slots: int = 1) -> None:
        self._free = slots
        self._line: list[Ticket] = []  # short, and an empty deque takes 700 bytes

    @property
    def waiting(self) -> int:
        return len(self._line)

    def request(self, ticket: Ticket, *, front: bool = False) -> None:
        """Queue up, unless it holds a slot or stands in line. The grant may come before this returns."""
        if ticket.waiting or ticket.holds:
            return
        ticket.waiting = True
        if front:
            self._line.insert(0, ticket)
        else:
            self._line.append(ticket)
        self._serve()

    def withdraw(self, ticket: Ticket) -> None:
        """Leave the line."""
        if ticket.waiting:
            ticket.waiting = False
            self._line.remove(ticket)

    def release(self, ticket: Ticket) -> None:
        """Give the slot back. Harmless when it holds none."""
        if ticket.holds:
            ticket.holds = False
            self._free += 1
            self._serve()

    def _serve(self) -> None:
        while self._free > 0 and self._line:
            ticket = self._line.pop(0)
            ticket.waiting, ticket.holds = False, True
            self._free -= 1
            ticket.grant()
