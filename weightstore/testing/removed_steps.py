"""Checks and other safety steps that are taken out one by one, and the test that misses each.

A pytest plugin: `python -m pytest -p weightstore.testing.removed_steps --removed-step NAME TEST`
runs a test while the product lacks that step. It must fail. Steps of the protocol between
processes are in `weightstore.testing.simulation.mutations`; three of them are used here too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.format.objects import ObjectRef
from weightstore.history.log import StoredRecord
from weightstore.history.manifests import fetch_object
from weightstore.receiver.delta_work import LiveTables
from weightstore.receiver.live_storage import HostStorage, ScatterCounts
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.placement import Placement
from weightstore.receiver.reports import Tally
from weightstore.storage.blobs import BlobStore
from weightstore.testing.simulation.mutations import Removed, without

OPTION = "--removed-step"
_CHECKOUT = Path(__file__).resolve().parents[2]
_TEST_FOLDERS = (_CHECKOUT / "tests", _CHECKOUT / "weightstore/testing")
_COUNT = re.compile(r"(?m)^1 failed(, \d+ warnings?)? in ")
_FAILURE = re.compile(r"(?m)^(?P<path>/[^:\n]+\.py):\d+: (?P<message>.+)$")
_MISSED = re.compile(r"AssertionError\b|assert |Failed: DID NOT RAISE ")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the product, and what shows that it is needed.

    Attributes:
        step: What the product does.
        breaks: What happens without it.
        test: Node id of the test that turns red.
        remove: Takes the step out of this process, inside its block.
    """

    step: str
    breaks: str
    test: str
    remove: Callable[[], AbstractContextManager[None]]

    @property
    def test_function(self) -> str:
        """The node id without parameters."""
        return self.test.partition("[")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names a step."""
    parser.addoption(OPTION, choices=sorted(STEPS), help="run without this step of the product")


def pytest_configure(config: pytest.Config) -> None:
    """Take the step out until the run ends, before any test is imported."""
    name: str | None = config.getoption(OPTION)
    if name is not None:
        stack = ExitStack()
        stack.enter_context(STEPS[name].remove())
        config.add_cleanup(stack.close)


def why_not_missed(output: str) -> str:
    """Why a run of one test with `--tb=line` does not show that it misses a step; empty if it does.

    A test misses a step if a check of the test itself fails. An error on the way there, or an
    assertion of the product, may have any cause.

    Args:
        output: What pytest has printed.
    """
    found = list(_FAILURE.finditer(output))
    if not _COUNT.search(output) or len(found) != 1:
        return "not one failure, and nothing else"
    path, message = Path(found[0]["path"]).resolve(), found[0]["message"]
    if not any(path.is_relative_to(folder) for folder in _TEST_FOLDERS):
        return f"{path} failed, which is no test"
    return "" if _MISSED.match(message) else f"it ended in an error: {message}"


class _Equal:
    """Equal to everything, so that a comparison with it is none."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def _nothing(*_: object, **__: object) -> None:
    """Stand in for a check that raises."""


def _equal_to_all(*_: object) -> _Equal:
    return _Equal()


def _found(*_: object) -> bool:
    return True


def _no_share(*_: object) -> list[int]:
    return []


def _take_doubt_for_no(self: Any) -> StoredRecord | None:  # noqa: ANN401 -- of a private class
    """Of `_Delivery.run`: whatever is no success is taken for a slot of somebody else."""
    stored: StoredRecord = self._sealed.stored
    return stored if self._send() is None else None


def _take_doubt_for_yes(self: Any) -> StoredRecord:  # noqa: ANN401 -- of a private class
    """Of `_Delivery.run`: whatever is no success is taken for one."""
    stored: StoredRecord = self._sealed.stored
    self._send()
    return stored


def _get_of_any_size(self: Any, key: str, /, *, max_size_bytes: int) -> bytes:  # noqa: ANN401 -- inside
    """Of `LocalBlobStore.get`."""
    del max_size_bytes
    with self._opened(key) as (file, size_bytes):
        return b"".join(iter(partial(os.read, file, size_bytes + 1), b""))


def _fetch_of_any_size(blobs: BlobStore, ref: ObjectRef, **named: Any) -> bytes:  # noqa: ANN401 -- as given
    """Of `fetch_object`."""
    return _fetch(blobs, ref, **{**named, "max_size_bytes": ref.size_bytes})


def _damaged_of_what_is_known(
    self: LiveWeights,
    placement: Placement,
    numbers: Sequence[int],
    tables: LiveTables,
    tally: Tally,
) -> tuple[str, ...]:
    """Of `LiveWeights._damaged`: what is to be adopted has no damage."""
    return _damaged(self, placement, numbers, tables, tally) if tables is self.tables else ()


def _scatter_blindly(self: HostStorage, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
    """Of `HostStorage.scatter`."""
    return _scatter(self, change, redo=redo)._replace(strange_count=0)


_fetch = fetch_object
_damaged = LiveWeights._damaged  # noqa: SLF001 -- what is left out is inside
_scatter = HostStorage.scatter
_SAME_SHA256 = SimpleNamespace(sha256=lambda _: SimpleNamespace(hexdigest=_equal_to_all))


@contextmanager
def _patched(stand_in: object, targets: Sequence[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for target in targets:
            stack.enter_context(patch(f"weightstore.{target}", stand_in))
        yield


def _put(stand_in: object, *targets: str) -> Callable[[], AbstractContextManager[None]]:
    """Put something in the place of parts of the product."""
    return partial(_patched, stand_in, targets)


_FETCHING = (
    "history.anchors",
    "history.manifests",
    "history.pack_jobs",
    "receiver.host_agent.pack_maker",
)
_RECEIVER = "tests/unit/receiver"
_BASE = f"{_RECEIVER}/test_receiver_base.py"
_PIECES = "tests/hostile/test_codec_pieces.py"

STEPS = {
    "read-back-of-records": Step(
        "A commit without an answer is looked for in its slot",
        "taken for a failure, it is put twice",
        "tests/unit/history/test_commit.py"
        "::test_a_lost_answer_is_found_in_the_log_and_counts_once",
        _put(_take_doubt_for_no, "history.commit._Delivery.run"),
    ),
    "read-back-of-lost-records": Step(
        "A commit without an answer counts once its record is found",
        "taken for a success, it is reported and is nowhere",
        "tests/unit/history/test_commit.py"
        "::test_a_lost_request_is_sent_again_with_the_same_bytes",
        _put(_take_doubt_for_yes, "history.commit._Delivery.run"),
    ),
    "read-back-of-objects": Step(
        "An object whose put had no clean answer is read and compared",
        "bytes of somebody else are taken for one's own",
        "tests/unit/history/test_settle.py"
        "::test_other_bytes_are_a_conflict_and_stay[abd-whole]",
        _put(_found, "history.settle._holds"),
    ),
    "manifest-sha256": Step(
        "A manifest has the SHA-256 that its log record names, looked at in two places",
        "one that reads well and says something else is believed",
        "tests/unit/history/test_manifests.py"
        "::test_a_manifest_that_reads_well_and_is_another_is_refused",
        _put(_SAME_SHA256, "history.manifests.hashlib", "format.manifest.hashlib"),
    ),
    "pack-sha256": Step(
        "A pack has the SHA-256 that its manifest names",
        "a changed byte is passed on to whoever decodes it",
        "tests/unit/history/test_pack_jobs.py"
        "::test_a_pack_that_is_not_what_was_committed_is_refused[damaged]",
        _put(_SAME_SHA256, "history.manifests.hashlib"),
    ),
    "piece-hash": Step(
        "A piece has the hash of the pack's index",
        "a changed byte is not noticed by the codec",
        f"{_PIECES}::test_any_damage_to_a_stream_fails_the_hash[numpy-0]",
        _put(_equal_to_all, "codec.decoding.hash_streams"),
    ),
    "table-digest": Step(
        "A digest table adds up to the digest in the log",
        "table and record of two states are believed",
        "tests/unit/history/test_manifests.py"
        "::test_a_table_that_does_not_sum_to_the_digest_is_refused",
        _put(_equal_to_all, "history.manifests.state_digest"),
    ),
    "checkout-digest": Step(
        "A checkout in place ends with the digests of all that has landed",
        "bits that did not land are returned as the version",
        "tests/unit/history/test_checkout.py::test_bits_that_did_not_land_are_found",
        _put(_nothing, "history.checkout._scan"),
    ),
    "size-bound-of-reads": Step(
        "A blob above the bound of its reader is not read",
        "a large file takes as much memory",
        "tests/unit/storage/test_local.py"
        "::TestLocalBlobs::test_a_blob_above_the_bound_is_refused",
        _put(_get_of_any_size, "storage.local.LocalBlobStore.get"),
    ),
    "size-bound-of-objects": Step(
        "An object that is named with a size above `Limits` is not read",
        "a manifest decides how much memory a reader takes",
        "tests/unit/history/test_manifests.py::test_an_object_above_its_bound_is_not_read",
        _put(_fetch_of_any_size, *(f"{module}.fetch_object" for module in _FETCHING)),
    ),
    "bound-of-frames": Step(
        "A frame is unpacked only if it declares the size that the index says",
        "a bomb is unpacked before it is refused",
        f"{_PIECES}::test_bombs_are_refused_before_anything_is_allocated[numpy-expands to 128 MiB]",
        _put(_nothing, "codec.frames.FrameCoder._check_header"),
    ),
    "bound-of-streams": Step(
        "The sizes of a piece's streams go with its counts",
        "a bomb that the index vouches for is unpacked",
        f"{_PIECES}::test_a_stream_larger_than_its_counts_allow_is_never_opened[numpy-1]",
        _put(_nothing, "codec.decoding._check_shape"),
    ),
    "scan-of-the-adopted": Step(
        "P8 a: weights are known by a checkout or a full scan before a delta may fit",
        "unrelated weights are served as a version",
        f"{_BASE}::test_p8_a_unrelated_weights_are_not_adopted",
        _put(_damaged_of_what_is_known, "receiver.live_weights.LiveWeights._damaged"),
    ),
    "base-at-staging": Step(
        "P8 b: version and digest of the base are compared when a delta is staged",
        "a delta of another history is tried on the weights that are live",
        f"{_BASE}::test_p8_b_a_base_with_another_digest_is_refused",
        _put(_nothing, "history.delta_path._check_base"),
    ),
    "digest-difference-at-staging": Step(
        "P8 c: each piece is compared with the bits that it is about, when it is staged",
        "the version is served with other bits than its own",
        f"{_BASE}::test_p8_c_a_piece_that_does_not_fit_is_refused_before_any_write",
        _put(_nothing, "codec.decoding.Decoder.check_change"),
    ),
    "compare-on-apply": Step(
        "P8: what an apply overwrites is compared with what was there at staging",
        "weights that somebody else has written are served",
        f"{_BASE}::test_weights_zeroed_between_stage_and_apply_make_dirty",
        _put(_scatter_blindly, "receiver.live_storage.HostStorage.scatter"),
    ),
    "rolling-scan": Step(
        "P8: a rolling scan comes to every element",
        "a changed bit outside of all changes is never found",
        f"{_BASE}::test_a_bit_outside_the_change_is_found_by_the_rolling_scan",
        _put(_no_share, "receiver.rolling_scan.RollingScan.take"),
    ),
    "scan-before-staging": Step(
        "P8: each staging takes its share of that scan first",
        "a changed bit is found only where somebody asks for a scan",
        f"{_BASE}::test_staging_looks_at_everything_in_turn",
        _put(_nothing, "receiver.refits.Refits._look_before"),
    ),
    "absolute-redo": Step(
        "A cut change is written again as absolute bits, not as XOR",
        "a repeat undoes what had landed",
        "tests/crash/test_receiver_cuts.py"
        "::test_a_change_that_was_cut_at_any_launch_is_done_again[0-half]",
        partial(without, Removed.ABSOLUTE_REDO),
    ),
    "closed-gate": Step(
        "The gate is closed while weights are written",
        "a mixture is served",
        f"{_RECEIVER}/test_live_weights.py::test_the_parts_of_an_apply_one_by_one",
        partial(without, Removed.CLOSED_GATE),
    ),
    "staleness-bound": Step(
        "In the mode `active` a look at the log is relied on for a bounded time",
        "who is cut off serves the version before for ever",
        f"{_RECEIVER}/test_follower_faults.py"
        "::test_nobody_serves_another_version_for_longer_than_the_staleness",
        partial(without, Removed.STALENESS),
    ),
}  # fmt: skip
"""By the name that the option takes."""
