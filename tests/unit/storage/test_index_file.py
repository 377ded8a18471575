"""Which keys an index takes."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError
from weightstore.storage.index_file import check_index_keys


def test_keys_of_1_to_511_bytes_fit() -> None:
    check_index_keys([])
    check_index_keys([b"a", b"a" * 511])


@pytest.mark.parametrize("key", [b"", b"a" * 512])
def test_one_bad_key_among_good_ones_is_refused(key: bytes) -> None:
    with pytest.raises(InputRefusedError, match=f"has {len(key)} bytes"):
        check_index_keys([b"a", key, b"b"])
