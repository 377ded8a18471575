"""One zstd frame per stream: sizes declared, checked and bounded before anything grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from weightstore.codec.piece import Stream
from weightstore.errors import CorruptObjectError
from weightstore.settings import MIB

WINDOW_SIZE_BYTES_MAX = 8 * MIB
"""A frame may ask for a window of its own content, or of this; RFC 8878 suggests the same."""
_WINDOW_LOG, _HASH_LOG, _MIN_MATCH = 17, 6, 7


class FrameCoder:
    """Compresses and decompresses streams. Owns zstd contexts: one thread at a time."""

    def __init__(self, size_bytes_max: int) -> None:
        """Make the contexts.

        Args:
            size_bytes_max: No stream may decompress to more.
        """
        self._size_bytes_max = size_bytes_max
        # Matches are hardly looked for: gaps and codes are noise to them, and all the gain is
        # in the Huffman tables. Negative levels would switch those off.
        self._compressor = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(
                strategy=zstandard.STRATEGY_FAST,
                window_log=_WINDOW_LOG,
                hash_log=_HASH_LOG,
                min_match=_MIN_MATCH,
                write_content_size=True,
                write_checksum=False,
                write_dict_id=False,
            )
        )
        self._decompressor = zstandard.ZstdDecompressor(
            max_window_size=max(WINDOW_SIZE_BYTES_MAX, size_bytes_max)
        )

    def compress(self, data: NDArray[np.uint8], plane_count: int = 1) -> bytes:
        """Compress one stream to one frame; nothing to nothing.

        Args:
            data: The whole stream.
            plane_count: How many planes of equal size it holds. Each starts a block of its
                own, so that unlike planes do not share a Huffman table.
        """
        if data.size == 0:
            return b""
        if plane_count == 1:
            return self._compressor.compress(data.data)
        compressing = self._compressor.compressobj(size=data.size)
        parts = []
        for plane in np.split(data, plane_count):
            parts.append(compressing.compress(plane.data))
            parts.append(compressing.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        parts.append(compressing.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH))
        return b"".join(parts)

    def decompress(self, frame: Stream, raw_size_bytes: int, *, what: str) -> NDArray[np.uint8]:
        """Decompress one frame of known content size.

        Args:
            frame: The frame and nothing else.
            raw_size_bytes: What the piece index declares.
            what: Name of the stream for messages.

        Returns:
            The content, read-only.

        Raises:
            CorruptObjectError: the frame declares another size or none, needs a dictionary or
                too large a window, ends early, is followed by more, or does not decompress.
        """
        if raw_size_bytes == 0 and len(frame) == 0:
            return np.empty(0, dtype=np.uint8)
        self._check_header(frame, raw_size_bytes, what)
        try:
            content = self._decompressor.decompress(
                frame, max_output_size=raw_size_bytes, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise _refused(what, f"does not decompress ({error})") from error
        if len(content) != raw_size_bytes:
            raise _refused(what, f"holds {len(content)} bytes instead of {raw_size_bytes}")
        return np.frombuffer(content, dtype=np.uint8)

    def _check_header(self, frame: Stream, raw_size_bytes: int, what: str) -> None:
        """Refuse a frame by its header, before anything is allocated for it."""
        if not 0 < raw_size_bytes <= self._size_bytes_max:
            raise _refused(what, f"is declared with {raw_size_bytes} bytes")
        try:
            header: Any = zstandard.get_frame_parameters(frame)
        except zstandard.ZstdError as error:
            raise _refused(what, f"is no zstd frame ({error})") from error
        if header.content_size != raw_size_bytes:
            raise _refused(
                what, f"declares {header.content_size} bytes; the index says {raw_size_bytes}"
            )
        if header.dict_id != 0 or header.has_checksum:
            raise _refused(what, "asks for a dictionary or carries a checksum")
        if header.window_size > max(WINDOW_SIZE_BYTES_MAX, raw_size_bytes):
            raise _refused(what, f"asks for a window of {header.window_size} bytes")


def _refused(what: str, why: str) -> CorruptObjectError:
    """Build the error of a stream that is not what it should be."""
    return CorruptObjectError(
        f"the {what} stream of a piece {why}",
        do="Read the pack from another copy, or check out a full form.",
        facts={"stream": what},
    )
