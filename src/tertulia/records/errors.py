"""Every error that tertulia raises on purpose.

TertuliaError
├── InvalidInput                what the caller gave cannot be used; nothing was written
│   ├── InvalidId
│   ├── InvalidForkEntryIndex   .index
│   ├── InvalidSnapshot         resume() was given entries that are no transcript
│   ├── InvalidTool             a function or schema no tool can be made from
│   └── ConfigError
│       └── MissingExtra        a feature whose optional packages are not installed
├── NotFound
│   ├── SessionNotFound
│   ├── ConversationNotFound
│   ├── TurnNotFound
│   ├── ItemNotFound
│   └── ApprovalNotFound
├── Conflict                    the request does not fit the state of things
│   ├── PromptAlreadyRunning
│   ├── ConversationBusy
│   ├── ConversationClosed
│   ├── IdConflict              a client id was used before
│   ├── ToolConflict
│   ├── ApprovalAlreadyAnswered
│   ├── CompactionRefused
│   └── WrongThread
├── PromptCancelled
├── TurnTimeout
├── ApprovalDenied
├── SandboxError
├── McpError
├── StoragePolicyViolation      more was asked to be stored than the retention allows
├── StorageError
│   ├── StoreClosed
│   ├── StoreFull
│   ├── StoreReadOnly
│   ├── StoreCorrupt
│   │   └── RecordCorrupt
│   ├── StoreNotFound           no such path, or something there that is no store
│   ├── VersionTooNew           .found, .supported
│   ├── SessionHeld             .holder
│   ├── StaleFence              another owner has claimed the session since
│   ├── SequenceConflict        a batch names a seq that is not the next one
│   └── BlobMissing
├── ModelError
│   ├── RateLimited             .retry_after
│   ├── Overloaded
│   ├── ModelConnectionError
│   ├── ContextFull
│   ├── AuthenticationFailed
│   ├── RequestRefused
│   ├── BadModelRequest
│   ├── EmptyReply
│   ├── OutputInvalid           the answer is not of the type that was asked for, also when asked again
│   └── UnknownModelError       the original is the __cause__
└── InternalError               a defect of ours
"""

from typing import Any, ClassVar


class TertuliaError(Exception):
    """`code` is stable and the same on every wire; `hint` says what to do; `details` is plain data."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str = "", *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message or self.code)
        self.message = message or self.code
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidInput(TertuliaError, ValueError):
    code = "invalid_input"


class InvalidId(InvalidInput):
    code = "invalid_id"


class InvalidForkEntryIndex(InvalidInput):
    code = "invalid_fork_entry_index"

    def __init__(self, index: object, message: str = "") -> None:
        super().__init__(message or f"no conversation can be forked at entry {index!r}", index=index)
        self.index = index


class InvalidSnapshot(InvalidInput):
    code = "invalid_snapshot"


class InvalidTool(InvalidInput):
    code = "invalid_tool"


class ConfigError(InvalidInput):
    code = "config"


class MissingExtra(ConfigError):
    code = "missing_extra"


class NotFound(TertuliaError, LookupError):
    code = "not_found"


class SessionNotFound(NotFound):
    code = "session_not_found"


class ConversationNotFound(NotFound):
    code = "conversation_not_found"


class TurnNotFound(NotFound):
    code = "turn_not_found"


class ItemNotFound(NotFound):
    code = "item_not_found"


class ApprovalNotFound(NotFound):
    code = "approval_not_found"


class Conflict(TertuliaError):
    code = "conflict"


class PromptAlreadyRunning(Conflict):
    code = "prompt_already_running"


class ConversationBusy(Conflict):
    code = "conversation_busy"


class ConversationClosed(Conflict):
    code = "conversation_closed"


class IdConflict(Conflict):
    code = "id_conflict"


class ToolConflict(Conflict):
    code = "tool_conflict"


class ApprovalAlreadyAnswered(Conflict):
    code = "approval_already_answered"


class CompactionRefused(Conflict):
    code = "compaction_refused"


class WrongThread(Conflict):
    code = "wrong_thread"


class PromptCancelled(TertuliaError):
    code = "cancelled"


class TurnTimeout(TertuliaError):
    code = "timeout"


class ApprovalDenied(TertuliaError):
    code = "approval_denied"


class SandboxError(TertuliaError):
    code = "sandbox"


class McpError(TertuliaError):
    code = "mcp"


class StoragePolicyViolation(TertuliaError):
    code = "storage_policy_violation"


class StorageError(TertuliaError):
    code = "storage"


class StoreClosed(StorageError):
    code = "store_closed"


class StoreFull(StorageError):
    code = "store_full"


class StoreReadOnly(StorageError):
    code = "store_read_only"


class StoreCorrupt(StorageError):
    code = "store_corrupt"


class RecordCorrupt(StoreCorrupt):
    code = "record_corrupt"


class StoreNotFound(StorageError):
    code = "store_not_found"


class VersionTooNew(StorageError):
    code = "version_too_new"

    def __init__(self, what: str, found: object, supported: object) -> None:
        super().__init__(
            f"{what} has version {found}; this tertulia reads up to {supported}",
            hint="upgrade tertulia to open it; nothing was changed",
            found=found,
            supported=supported,
        )
        self.found = found
        self.supported = supported


class SessionHeld(StorageError):
    code = "session_held"

    def __init__(self, session: str, holder: str) -> None:
        super().__init__(
            f"session {session} is being written by {holder}",
            hint="close it there, or read it here without writing",
            session=session,
            holder=holder,
        )
        self.holder = holder


class StaleFence(StorageError):
    code = "stale_fence"


class SequenceConflict(StorageError):
    code = "sequence_conflict"


class BlobMissing(StorageError):
    code = "blob_missing"


class ModelError(TertuliaError):
    code = "model_error"


class RateLimited(ModelError):
    code = "rate_limited"

    def __init__(self, message: str = "", *, retry_after: float | None = None, **details: Any) -> None:
        super().__init__(message, retry_after=retry_after, **details)
        self.retry_after = retry_after


class Overloaded(ModelError):
    code = "overloaded"


class ModelConnectionError(ModelError):
    code = "connection"


class ContextFull(ModelError):
    code = "context_full"


class AuthenticationFailed(ModelError):
    code = "authentication"


class RequestRefused(ModelError):
    code = "refused"


class BadModelRequest(ModelError):
    code = "bad_request"


class EmptyReply(ModelError):
    code = "empty_reply"


class OutputInvalid(ModelError):
    code = "output_invalid"


class UnknownModelError(ModelError):
    """What a model raised that no rule classes; the original is the __cause__."""

    code = "unknown"


class InternalError(TertuliaError):
    code = "internal"
