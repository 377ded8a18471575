"""References hold a key, a size and a whole hash."""

from __future__ import annotations

import pytest

from weightstore.errors import CorruptObjectError
from weightstore.format.canonical import decode_model, encode_model
from weightstore.format.objects import ObjectRef
from weightstore.ids import Sha256

REF = ObjectRef(key="manifests/a-1/1-x", size_bytes=7, sha256=Sha256("ab" * 32))


def test_a_reference_survives_its_bytes() -> None:
    assert decode_model(ObjectRef, encode_model(REF), what="a reference") == REF


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"size_bytes":7', b'"size_bytes":-1'),
        (b'"size_bytes":7', b'"size_bytes":9007199254740992'),
        (b'"size_bytes":7', b'"size_bytes":"7"'),
        (b'"size_bytes":7', b'"size_bytes":true'),
        (b"ab" * 32, b"ab" * 31),
        (b"ab" * 32, b"AB" * 32),
        (b"manifests/a-1/1-x", b""),
        (b"manifests/a-1/1-x", b"x" * 1025),
    ],
)
def test_other_values_are_refused(old: bytes, new: bytes) -> None:
    data = encode_model(REF)
    assert old in data
    with pytest.raises(CorruptObjectError):
        decode_model(ObjectRef, data.replace(old, new), what="a reference")
