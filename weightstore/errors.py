"""Every error a user can meet, sorted by what the caller does next; codes are append-only.

The branches of the tree are actions: `ConflictError`, read and try again; `FencedError`, stop;
`UnknownOutcomeError`, resolve by the log; `CorruptError`, read another copy; `RefusedError`, fix
the input; `UnavailableError`, mend the storage; `NotFoundError`, ask for something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

Fact = str | int | bool | None | tuple[str, ...] | tuple[int, ...]


class WeightStoreError(Exception):
    """Base of every error of weightstore.

    Args:
        message: What happened, naming tensor, version, expected and found where they exist.
        do: What the reader of the message can do next, as one sentence; without it the
            `default_do` of the class.
        facts: The same facts for programs, by stable names.

    The error pickles (it crosses Ray and multiprocessing) and carries a stable `code`.
    """

    code: ClassVar[str] = "WS-0000"
    default_do: ClassVar[str] = "Report this error with its code and its facts."

    def __init__(
        self, message: str, *, do: str = "", facts: Mapping[str, Fact] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.do = do or self.default_do
        self.facts: dict[str, Fact] = dict(facts or {})

    def __str__(self) -> str:
        return f"{self.message}\n  -> {self.do}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.do, self.facts))

    @classmethod
    def _from_parts(cls, message: str, do: str, facts: Mapping[str, Fact]) -> Self:
        return cls(message, do=do, facts=facts)


def _rebuild(
    kind: type[WeightStoreError], message: str, do: str, facts: Mapping[str, Fact]
) -> WeightStoreError:
    return kind._from_parts(message, do, facts)  # noqa: SLF001 -- same module, needed to unpickle


# --- Read and try again -----------------------------------------------------------------


class ConflictError(WeightStoreError):
    """Somebody was first. Read again, then decide."""

    code = "WS-1000"
    default_do = "Read the store again, then decide."


class BlobExistsError(ConflictError):
    """A blob of this key is already there; nothing was written."""

    code = "WS-1001"


class StoreOwnedError(ConflictError):
    """Another trainer holds the open claim of this store."""

    code = "WS-1002"
    default_do = "Wait until the other trainer has ended, or take the store over on purpose."


class StoreBusyError(ConflictError):
    """The last attempt has no verdict yet; one attempt runs at a time."""

    code = "WS-1003"
    default_do = "Finish the last attempt, then try again."


class NotReadyError(ConflictError):
    """A receiver may not serve now: it is empty, dirty, changing, or at another version."""

    code = "WS-1004"
    default_do = "Try again after the next refit, or send the request to another receiver."


class NotStagedError(ConflictError):
    """Some receivers have not staged the version; it was not activated."""

    code = "WS-1005"


class FolderBusyError(ConflictError):
    """Another process keeps this directory at a version; one does at a time."""

    code = "WS-1006"


# --- Stop -------------------------------------------------------------------------------


class FencedError(WeightStoreError):
    """A newer claim owns the store: this trainer must stop; it cannot commit any more."""

    code = "WS-2000"
    default_do = "Stop this trainer; to go on, attach to the store anew."


class AttemptVoidedError(FencedError):
    """The attempt was ended in the log by a `void` record; nothing of it is visible."""

    code = "WS-2001"


# --- Resolve ----------------------------------------------------------------------------


class UnknownOutcomeError(WeightStoreError):
    """It may or may not have happened. Neither success nor failure is claimed."""

    code = "WS-3000"
    default_do = "Open the store again and read whether it happened, before anything is repeated."


class BlobOutcomeUnknownError(UnknownOutcomeError):
    """A write got no answer, or its fsync failed. Read the key before anything else."""

    code = "WS-3001"


class CommitUnknownError(UnknownOutcomeError):
    """The log could not be read until the deadline: the commit's fate is not known yet."""

    code = "WS-3002"


# --- Read another copy ------------------------------------------------------------------


class CorruptError(WeightStoreError):
    """Stored bytes are not what their hash, size or grammar says."""

    code = "WS-4000"
    default_do = "Verify the store, and read another copy of it or another version."


class CorruptObjectError(CorruptError):
    """An object fails its size, hash or structure check."""

    code = "WS-4001"


class ObjectMissingError(CorruptError):
    """A committed version names an object that is not there."""

    code = "WS-4002"


class CorruptLogError(CorruptError):
    """A record does not parse, or contradicts the one before it."""

    code = "WS-4003"


class DigestMismatchError(CorruptError):
    """Bytes decoded well, but their state digest is not the recorded one."""

    code = "WS-4004"


class WrongBaseError(CorruptError):
    """A delta does not fit the bytes it was to be applied to; nothing was written."""

    code = "WS-4005"


class TargetUnusableError(CorruptError):
    """An in-place checkout failed after it had begun to write: load the target anew."""

    code = "WS-4006"
    default_do = "Load the target anew; what it holds now is a mixture."


class LiveWeightsError(CorruptError):
    """Live weights are not what this receiver left there: it is dirty and does not serve."""

    code = "WS-4007"
    default_do = "Refit or recover the receiver: it then writes the whole version in place."


class RanksDisagreeError(CorruptError):
    """The digests of an engine's ranks do not add up to the version; none of them serves."""

    code = "WS-4008"
    default_do = "Refit: every rank then takes the whole version."


# --- Fix the input ----------------------------------------------------------------------


class RefusedError(WeightStoreError):
    """The request is wrong as it stands; nothing was changed."""

    code = "WS-5000"
    default_do = "Correct the input named above, then call again; nothing was changed."


class SchemaMismatchError(RefusedError):
    """Names, shapes or dtypes differ from the store's schema; every difference is listed."""

    code = "WS-5001"


class NameRefusedError(RefusedError):
    """A tensor, run, tag or engine name breaks the naming rules."""

    code = "WS-5002"


class DTypeRefusedError(RefusedError):
    """A dtype cannot be stored, or would need a lossy cast that was not declared."""

    code = "WS-5003"


class StepConflictError(RefusedError):
    """This (run, step) is already committed with other bytes."""

    code = "WS-5004"


class StepOrderError(RefusedError):
    """Steps of a run rise; this one is below the newest and was never committed."""

    code = "WS-5005"


class SelectorError(RefusedError):
    """A version selector cannot be parsed."""

    code = "WS-5006"


class LimitError(RefusedError):
    """Something is larger than a named bound in `Limits`."""

    code = "WS-5007"


class TensorRefusedError(RefusedError):
    """A tensor's form (sparse, meta, quantised, `conj` or `neg` view) cannot be stored."""

    code = "WS-5008"


class RetireRefusedError(RefusedError):
    """The kept set would lose a version that must stay, or an object of it is missing."""

    code = "WS-5009"


class RecordRefusedError(RefusedError):
    """The rules of the log do not allow this record here."""

    code = "WS-5010"


class InputRefusedError(RefusedError):
    """An argument, file or directory is not usable for this call."""

    code = "WS-5011"


# --- Mend the storage -------------------------------------------------------------------


class UnavailableError(WeightStoreError):
    """The storage refuses or fails. Mend it and repeat; repeating is safe."""

    code = "WS-6000"
    default_do = "Mend the storage, then repeat; repeating is safe."


class StorageFullError(UnavailableError):
    """No space is left; nothing became visible."""

    code = "WS-6001"
    default_do = "Free space and repeat."


class StoreReadOnlyError(UnavailableError):
    """The storage does not let this process write."""

    code = "WS-6002"
    default_do = "Give this process write permission, or only read here."


class StorageFailedError(UnavailableError):
    """An input or output error of the storage below."""

    code = "WS-6003"


class BackendUnsuitableError(UnavailableError):
    """The storage ignores the condition that commits rest on; it is refused before use."""

    code = "WS-6004"
    default_do = "Keep the store on a local disk with ext4, XFS or btrfs."


class StoreClosedError(UnavailableError):
    """This handle is closed, or dead after a failed fsync. Open the store again."""

    code = "WS-6005"
    default_do = "Open the store again."


class UpgradeRequiredError(UnavailableError):
    """The store uses a format or feature that this release does not know."""

    code = "WS-6006"
    default_do = "Install a release that knows the store's format."


class RankFailedError(UnavailableError):
    """A rank of an engine failed, or did not answer in time; the engine does not serve it."""

    code = "WS-6007"
    default_do = "Mend or restart that rank, then refit the engine; repeating is safe."


# --- Ask for something else -------------------------------------------------------------


class NotFoundError(WeightStoreError):
    """What was asked for does not exist."""

    code = "WS-7000"
    default_do = "List what is there, then ask for one of those."


class BlobNotFoundError(NotFoundError):
    """No blob of this key."""

    code = "WS-7001"


class NotAStoreError(NotFoundError):
    """The place holds no weightstore."""

    code = "WS-7002"
    default_do = "Name the directory of a store, or make one there first."


class VersionNotFoundError(NotFoundError):
    """No such version was ever committed."""

    code = "WS-7003"


class VersionGoneError(NotFoundError):
    """The version was retired; the error names the newest kept one."""

    code = "WS-7004"


class TagNotFoundError(NotFoundError):
    """No such tag is set."""

    code = "WS-7005"


class ReceiverNotFoundError(NotFoundError):
    """No receiver of this id is listed."""

    code = "WS-7006"
