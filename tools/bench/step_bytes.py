"""The bytes of real steps: what a reader fetches for a change, against formats and a bound."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.bench import published_formats
from tools.bench.bandwidth import memory_folder
from tools.bench.bench import Findings
from tools.bench.published_step import HostCopy, Published, piece_inputs, publish
from tools.bench.report import against, alone, at_most
from tools.bench.weights import Weights, size_bytes_of


@dataclass(frozen=True, slots=True)
class Data:
    """One step's change: what it is called, and its weights before and after."""

    name: str
    before: Weights
    after: Weights
    published: Published

    @property
    def size_bytes(self) -> int:
        """Bytes of one version."""
        return size_bytes_of(self.before)


def make_data(name: str, steps: Iterable[Weights]) -> Data:
    """Put the steps into a store of its own, and keep the last two."""
    last: deque[Weights] = deque(maxlen=2)

    def kept() -> Iterator[Weights]:
        for weights in steps:
            last.append(weights)
            yield weights

    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        published = publish(kept(), Path(folder))
    before, after = last
    return Data(name, before, after, published)


def measure_bytes(data: Data, findings: Findings) -> None:
    """Count bytes a change: everything a reader fetches, against formats without headers."""
    changed = sum(report.changed_count for report in data.published.reports)
    wire = [report.wire_size_bytes / report.changed_count for report in data.published.reports]
    last = wire[-1:]
    count = data.published.reports[-1].changed_count
    shares = [report.changed_count / report.unit_count for report in data.published.reports]
    pairs = [(data.before[name].units, each.units) for name, each in data.after.items()]
    u16 = sum(published_formats.encode_u16_xor(*pair).size_bytes for pair in pairs) / count
    xor = sum(len(published_formats.encode_byte_xor(*pair)) for pair in pairs) / count
    pooled, each_alone = entropy_bytes(data.before, data.after)
    name = f"{data.name}: bytes a change, all headers"
    findings.add(
        alone(
            f"{data.name}: changed elements",
            "%",
            [100 * share for share in shares],
            note=f"{changed:,} changes in {len(shares)} steps",
        ),
        alone(name, "B", wire),
        against(name, "B", last, published_formats.U16_XOR, [u16], target=at_most(0.72)),
        against(name, "B", last, published_formats.BYTE_XOR, [xor]),
        against(
            name,
            "B",
            last,
            "order-0 entropy of gaps and ulp differences",
            [pooled],
            target=at_most(1.02),
            note=(
                "The bound is that of one distribution for the whole step; tensor by tensor it is "
                f"{each_alone:.3f} B, which no code reaches that has to say each distribution. "
                f"Headers, index, digests and manifest take {header_bytes(data) / count:.3f} B "
                "of it in a model of this size."
            ),
        ),
    )


def header_bytes(data: Data) -> int:
    """Bytes of the last step that are no stream of a piece."""
    readers = HostCopy(data.before, data.published.packs).readers()
    streams = sum(
        reader.piece(index).size_bytes for reader in readers for index in range(reader.piece_count)
    )
    return data.published.reports[-1].wire_size_bytes - streams


def entropy_bytes(before: Weights, after: Weights) -> tuple[float, float]:
    """Order-0 entropy of gaps plus that of differences, in bytes a change: pooled, and alone."""
    gaps, differences, alone_bits = [], [], 0.0
    for each in piece_inputs(before, after):
        positions = np.flatnonzero(each.old != each.new)
        if positions.size:
            gaps.append(np.diff(positions, prepend=-1) - 1)
            differences.append((each.new - each.old)[positions])
            alone_bits += _bits(gaps[-1]) + _bits(differences[-1])
    count = sum(map(len, gaps))
    pooled_bits = _bits(np.concatenate(gaps)) + _bits(np.concatenate(differences))
    return pooled_bits / count / 8, alone_bits / count / 8


def _bits(symbols: NDArray[Any]) -> float:
    """Empirical bits of all symbols."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(np.sum(counts * np.log2(symbols.size / counts)))
