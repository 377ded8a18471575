"""Wrapper words leave names by explicit rules; doing it twice changes nothing."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, NameRefusedError
from weightstore.layout.canonical_names import (
    WRAPPER_RULES,
    canonical_name,
    canonical_names,
    refuse_wrapped,
)

WRAPPED = {
    "module.model.embed.weight": "model.embed.weight",
    "_orig_mod.model.embed.weight": "model.embed.weight",
    "model._orig_mod.layers.0.weight": "model.layers.0.weight",
    "model.layers.0._fsdp_wrapped_module.attn.weight": "model.layers.0.attn.weight",
    "_fsdp_wrapped_module._orig_mod.module.w": "w",
    "module._orig_mod.module.w": "w",
    "base_model.model.lm_head.base_layer.weight": "lm_head.weight",
    "a.base_layer.base_layer.b": "a.b",
    "a.base_layer._orig_mod.base_layer.b": "a.b",
}


@pytest.mark.parametrize(("name", "expected"), WRAPPED.items())
def test_wrapper_words_are_taken_out_by_rules_and_twice_is_once(name: str, expected: str) -> None:
    assert canonical_name(name, WRAPPER_RULES) == expected
    assert canonical_name(expected, WRAPPER_RULES) == expected
    refuse_wrapped([expected])


@pytest.mark.parametrize("name", WRAPPED)
def test_without_a_rule_wrapped_names_are_refused_by_name(name: str) -> None:
    assert canonical_name(name, ()) == name
    with pytest.raises(NameRefusedError) as refused:
        refuse_wrapped(["model.norm.weight", name])
    assert name in str(refused.value)
    assert refused.value.facts["tensors"] == (name,)


@pytest.mark.parametrize(
    "name",
    ["encoder.module.weight", "my_module.weight", "base_model.weight", "x.base_layer", "module"],
)
def test_names_that_only_look_alike_stay(name: str) -> None:
    assert canonical_name(name, WRAPPER_RULES) == name
    refuse_wrapped([name])


def test_own_rules() -> None:
    assert canonical_name("actor.model.w", ("actor.",)) == "model.w"
    assert canonical_name("a.lora.w", (".lora.",)) == "a.w"
    for rule in ("", ".", "..", "module", "."):
        with pytest.raises(InputRefusedError, match="no rule"):
            canonical_name("w", (rule,))


def test_two_names_that_become_one_are_refused() -> None:
    assert canonical_names(["module.b", "a"], ("module.",)) == {"module.b": "b", "a": "a"}
    with pytest.raises(NameRefusedError, match=r"'module\.a' and 'a' both become 'a'"):
        canonical_names(["module.a", "a"], ("module.",))
    with pytest.raises(NameRefusedError, match=r"_orig_mod\.a"):
        canonical_names(["module._orig_mod.a"], ("module.",))


def test_a_name_is_not_stripped_to_nothing() -> None:
    with pytest.raises(NameRefusedError, match="nothing is left"):
        canonical_name("module.module.", ("module.",))
