"""Casts happen only where the caller has said so."""

from __future__ import annotations

import pytest

from weightstore.errors import DTypeRefusedError
from weightstore.layout.dtypes import DType
from weightstore.trainer.cast_rules import CastRules


def test_without_rules_nothing_is_cast() -> None:
    rules = CastRules()
    assert all(rules.published("w", dtype) is dtype for dtype in DType)


def test_a_star_casts_wider_floats_and_nothing_else() -> None:
    rules = CastRules.parse({"*": "bf16"})
    cast = {dtype for dtype in DType if rules.published("w", dtype) is not dtype}
    assert cast == {DType.F32, DType.F64}
    assert rules.published("w", DType.F32) is DType.BF16


def test_the_last_rule_that_matches_wins() -> None:
    rules = CastRules.parse({"*": "bf16", "*.router.*": "float32", "lm_head.*": "F16"})
    assert rules.published("a.router.weight", DType.F32) is DType.F32
    assert rules.published("a.router.weight", DType.F64) is DType.F32
    assert rules.published("lm_head.weight", DType.F32) is DType.F16
    assert rules.published("a.q.weight", DType.F32) is DType.BF16


@pytest.mark.parametrize("text", ["bf16", "bfloat16", "BF16"])
def test_a_dtype_has_its_usual_names(text: str) -> None:
    assert CastRules.parse({"*": text}).published("w", DType.F32) is DType.BF16


@pytest.mark.parametrize("text", ["int8", "F8_E4M3", "F64", "bf17", ""])
def test_what_nothing_is_cast_to_is_refused(text: str) -> None:
    with pytest.raises(DTypeRefusedError):
        CastRules.parse({"*": text})
