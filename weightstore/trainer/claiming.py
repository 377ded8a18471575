"""Becoming the owner of a store, and everything that its owner then works with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from weightstore.clock import Clock, Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.errors import (
    ConflictError,
    FencedError,
    InputRefusedError,
    RefusedError,
    StoreOwnedError,
    WeightStoreError,
)
from weightstore.history.claim import Claim, Owner, close_claim, open_claim
from weightstore.history.closing import closing_after
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log
from weightstore.history.workers import Workers
from weightstore.ids import RunId, SessionId, Step
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.machine import boot_id, host_name, process_id
from weightstore.storage.owner_lock import (
    OwnerLock,
    acquire_owner_lock,
    is_owner_dead,
    remove_dead_locks,
)
from weightstore.trainer.benches import make_benches
from weightstore.trainer.tools import Tools

if TYPE_CHECKING:
    from weightstore.trainer.device_baseline import DeviceBaseline


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoreParts:
    """An opened store, and how this process uses it.

    Attributes:
        blobs: The store.
        log: Its log.
        clock: Time.
        entropy: Randomness.
        settings: How much is done at once, and when full forms are written.
        codec: Kernels to use; None makes one.
        device: Compares large tensors where they are; None does as the settings say.
    """

    blobs: BlobStore
    log: Log
    clock: Clock
    entropy: Entropy
    settings: Settings
    codec: PieceCodec | None = None
    device: DeviceBaseline | None = None

    def new_session(self) -> SessionId:
        """A nonce for one launch."""
        return SessionId(self.entropy.hex128())


def claim_store(
    at_end: ExitStack,
    parts: StoreParts,
    *,
    run: RunId,
    session: SessionId,
    take_over: bool = False,
    rewind_to: Step | None = None,
) -> tuple[Tools, Claim]:
    """Claim a store for a run.

    After a crash: the claim is open or not; on a local store the next trainer on this
    machine sees that its owner is dead, elsewhere it needs `take_over`.

    Args:
        at_end: Given what closes the claim and lets go of lock and threads, in that order.
        parts: The store.
        run: Whose steps will be put.
        session: Nonce of the launch.
        take_over: Fence whoever owns the store now.
        rewind_to: Steps above this one become new versions.

    Raises:
        StoreOwnedError: another trainer owns the store.
        CommitUnknownError: no answer until the deadline; repeat the call.
    """
    tools = _make_tools(at_end, parts, session)
    owner = Owner(host=host_name(), process=process_id(), boot_id=boot_id())
    # Held before the claim says so: a claim whose owner holds no lock is of a dead one.
    lock = acquire_owner_lock(
        parts.blobs,
        session,
        clock=parts.clock,
        try_count=parts.settings.limits.owner_lock_try_count,
    )
    if lock is not None:
        # Whatever is not known of the claim, the file stays, so that a successor can prove
        # this owner dead.
        at_end.callback(lock.leave)
    try:
        claim = _open_claim(tools, owner, run=run, take_over=take_over, rewind_to=rewind_to)
    except (ConflictError, FencedError, RefusedError):
        _release_without_claim(tools, lock)
        raise
    at_end.push(partial(_close, tools, claim, owner, lock))
    remove_dead_locks(tools.blobs, lambda: _open_session(tools))
    return tools, claim


def _open_claim(
    tools: Tools, owner: Owner, *, run: RunId, take_over: bool, rewind_to: Step | None
) -> Claim:
    """Open a claim, and look again where an owner of the past has refused it.

    Whoever takes a store over removes what proved that its owner is dead. A claim that looked
    at the log before that, and for the proof after it, was refused for an owner of the past.
    """

    def claim() -> Claim:
        return open_claim(
            tools.writer,
            run=run,
            owner=owner,
            take_over=take_over,
            rewind_to=rewind_to,
            is_owner_dead=lambda other, boot: is_owner_dead(tools.blobs, other, boot),
        )

    for _ in range(tools.limits.claim_try_count - 1):
        try:
            return claim()
        except StoreOwnedError as error:
            if error.facts.get("session") == _open_session(tools):
                raise
    return claim()


def _open_session(tools: Tools) -> SessionId | None:
    held = tools.log.tail().now.claim
    return held.session if held else None


def _close(
    tools: Tools,
    claim: Claim,
    owner: Owner,
    lock: OwnerLock | None,
    _kind: type[BaseException] | None,
    error: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    """The end of a block, perhaps by an error: that is what its caller must hear of."""
    with closing_after(error):
        close_claim(tools.writer, claim, owner=owner)
        if lock is not None:
            lock.release()
        remove_dead_locks(tools.blobs, lambda: _open_session(tools))


def _release_without_claim(tools: Tools, lock: OwnerLock | None) -> None:
    """Remove the lock of a claim that was not opened, unless the session has an older one."""
    with suppress(WeightStoreError):
        if lock is not None and _open_session(tools) != tools.writer.session:
            lock.release()


def _make_tools(at_end: ExitStack, parts: StoreParts, session: SessionId) -> Tools:
    codec = parts.codec or PieceCodec(limits=parts.settings.limits)
    workers = at_end.enter_context(Workers(parts.settings.thread_count))
    uploader = at_end.enter_context(ThreadPoolExecutor(1, thread_name_prefix="weightstore-upload"))
    return Tools(
        blobs=parts.blobs,
        log=parts.log,
        writer=LogWriter(
            parts.blobs,
            parts.log,
            clock=parts.clock,
            entropy=parts.entropy,
            settings=parts.settings,
            session=session,
        ),
        clock=parts.clock,
        entropy=parts.entropy,
        settings=parts.settings,
        codec=codec,
        workers=workers,
        uploader=uploader,
        benches=make_benches(codec),
        device=parts.device or _device_baseline(parts.settings),
    )


def _device_baseline(settings: Settings) -> DeviceBaseline | None:
    if settings.detect_on == "host":
        return None
    try:
        from weightstore.trainer.device_baseline import (  # noqa: PLC0415 -- torch is late
            DeviceBaseline,
        )
    except ImportError as error:
        raise InputRefusedError(
            'the setting detect_on is "device", and torch cannot be imported',
            do="Install torch, or leave `detect_on` as it is.",
        ) from error
    return DeviceBaseline()
