"""What can be said against a batch without looking at the store. Every back end asks here first."""

from ..records.errors import InvalidInput, StaleFence
from ..records.ids import check_id
from .base import (
    UNFENCED,
    Append,
    Batch,
    DropRange,
    Fence,
    PutBranch,
    PutConversation,
    PutGrant,
    PutSession,
)


def check_batch(batch: Batch, fence: Fence | None) -> None:
    """Raises what is wrong with it: StaleFence, InvalidInput or InvalidId."""
    for op in batch:
        if fence is None:
            if not isinstance(op, UNFENCED):
                raise StaleFence(f"{type(op).__name__} needs a fence", hint="claim the session first")
        elif isinstance(op, Append):
            _check_append(op)
        elif isinstance(op, DropRange):
            _check_range(op)
        elif isinstance(op, PutBranch):
            _check_branch(op)
        elif isinstance(op, PutConversation):
            check_id(op.row.id, "conversation id")
            require_session(fence, op.row.session)
        elif isinstance(op, PutSession):
            check_id(op.session, "session id")
            require_session(fence, op.session)
        elif isinstance(op, PutGrant) and op.row.session is not None:
            require_session(fence, op.row.session)


def require_session(fence: Fence | None, session: str) -> None:
    """That what is written belongs to the session of the fence; without a fence there is none to compare."""
    if fence is not None and fence.session != session:
        raise StaleFence(
            f"this belongs to session {session}, the fence is of {fence.session}",
            hint="write it under a fence of its own session",
            session=session,
        )


def stale(fence: Fence, epoch: int) -> StaleFence:
    return StaleFence(
        f"session {fence.session} was claimed again since (epoch {fence.epoch}, now {epoch})",
        hint="open the session anew; nothing of this batch was written",
        session=fence.session,
    )


def _check_append(op: Append) -> None:
    previous = op.first - 1
    if op.first < 1 or op.last < previous:
        raise InvalidInput(f"an append of the seqs {op.first} to {op.last}", hint="seqs begin at 1 and rise")
    for row in op.rows:
        if not previous < row.seq <= op.last:
            raise InvalidInput(
                f"record {row.seq} in an append of {op.first} to {op.last} after {previous}",
                hint="rows stand in order of seq, inside the append's range",
            )
        previous = row.seq


def _check_range(op: DropRange) -> None:
    if not 1 <= op.first <= op.through:
        raise InvalidInput(f"a range of the records {op.first} to {op.through}", hint="first <= through")


def _check_branch(op: PutBranch) -> None:
    if op.row.at < 0 or (op.row.at > 0 and op.row.parent is None):
        raise InvalidInput(
            f"a branch at {op.row.at} without a parent to inherit from", hint="give `parent`, or at=0"
        )
