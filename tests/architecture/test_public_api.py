"""The public names of the package are those of `__all__`, and nothing else."""

from __future__ import annotations

import types

import weightstore


def test_all_is_sorted_and_has_no_name_twice() -> None:
    assert list(weightstore.__all__) == sorted(set(weightstore.__all__))


def test_every_public_name_resolves() -> None:
    for name in weightstore.__all__:
        assert getattr(weightstore, name) is not None


def test_no_public_name_is_left_out() -> None:
    public = {
        name
        for name, value in vars(weightstore).items()
        if not name.startswith("_")
        and name != "annotations"  # of `from __future__ import annotations`
        and not isinstance(value, types.ModuleType)
    }
    # Names that are loaded on first use are in `__all__` alone until then.
    assert public <= set(weightstore.__all__)
