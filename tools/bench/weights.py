"""The weights that benches measure with: real training steps, and changes spread evenly.

A training step is one of a transformer that is really trained: REINFORCE with AdamW on fp32
masters at a learning rate of 1e-6, cast to bf16 by torch. The even one changes 1 % of all
elements by one unit in the last place, up or down, anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units

Weights = dict[str, HostTensor]

LEARNING_RATE = 1e-6
WARM_UP_COUNT = 20
"""Steps before the first that is measured: AdamW's first ones move almost every weight alike."""
CHANGED_RATIO = 0.01
WEIGHT_SCALE = 0.02
PART_UNIT_COUNT = 1 << 20


def training_steps(step_count: int, *, is_small: bool) -> Iterator[Weights]:
    """Yield the weights after the warm-up, and after each of so many steps more."""
    import torch  # noqa: PLC0415 -- two seconds, and only these need it

    from weightstore.cli.demo_model import (  # noqa: PLC0415 -- imports torch
        DemoShape,
        DemoTransformer,
        Policy,
        PolicyGradient,
    )

    torch.manual_seed(0)
    if is_small:
        shape = DemoShape(vocabulary_size=1024, width=128, layer_count=1)
    else:
        # Matrices of a million elements and more, as in the smallest models that are trained
        # so: in those of the demo, headers and the caches weigh more than they do there.
        shape = DemoShape(vocabulary_size=16_384, width=1024, head_count=16)
    model = DemoTransformer(shape)
    policy = Policy(model, model, shape.vocabulary_size)
    trainer = PolicyGradient(policy, learning_rate=LEARNING_RATE, seed=0)
    for _ in range(1 if is_small else WARM_UP_COUNT):
        trainer.step()
    # The head is the embedding again, and is published once.
    parameters = {name: each for name, each in model.named_parameters() if name != "head.weight"}
    for step in range(step_count + 1):
        if step:
            trainer.step()
        yield {
            name: HostTensor(
                TensorSpec(name, DType.BF16, tuple(each.shape)),
                each.detach().to(torch.bfloat16).view(torch.uint16).numpy().reshape(-1).copy(),
            )
            for name, each in parameters.items()
        }


def even_steps(
    shapes: dict[str, tuple[int, ...]], step_count: int, *, dtype: DType = DType.BF16
) -> Iterator[Weights]:
    """Yield normal weights, and then as many steps as asked for; each is a copy."""
    rng = np.random.default_rng(0)
    weights = normal_weights(shapes, dtype=dtype)
    yield weights
    for _ in range(step_count):
        weights = {name: HostTensor(each.spec, each.units.copy()) for name, each in weights.items()}
        for each in weights.values():
            move(each.units, rng)
        yield weights


def normal_weights(shapes: dict[str, tuple[int, ...]], *, dtype: DType = DType.BF16) -> Weights:
    """Normal bf16 weights of the scale that trained ones have, taken from one pool.

    Args:
        shapes: Of the tensors.
        dtype: What the bits are called. F16 is as wide, and NumPy knows it.
    """
    values = np.random.default_rng(0).standard_normal(1 << 22, np.float32) * WEIGHT_SCALE
    pool = (values.view(np.uint32) >> 16).astype(np.uint16)
    weights = {}
    for index, (name, shape) in enumerate(shapes.items()):
        start = index * 4_099 % (pool.size // 2)
        # Cut before it is copied: a resized array keeps all that it was made from.
        count = int(np.prod(shape))
        units = np.resize(pool[start : start + count], count)
        weights[name] = HostTensor(TensorSpec(name, dtype, shape), units)
    return weights


def move(units: Units, rng: np.random.Generator, *, ratio: float = CHANGED_RATIO) -> None:
    """Move a share of all units by one, up or down; in parts, for peaks of memory are measured."""
    for start in range(0, units.size, PART_UNIT_COUNT):
        part = units[start : start + PART_UNIT_COUNT]
        chosen = np.flatnonzero(rng.random(part.size, dtype=np.float32) < ratio)
        part[chosen] += rng.choice(np.array([1, 0xFFFF], np.uint16), chosen.size)


def schema_of(weights: Weights) -> Schema:
    """The schema of weights."""
    return Schema.build(each.spec for each in weights.values())


def size_bytes_of(weights: Weights) -> int:
    """Bytes of all weights."""
    return sum(each.units.nbytes for each in weights.values())


def large_shapes(size_mib: int) -> dict[str, tuple[int, ...]]:
    """Matrices of 16 MiB of bf16, or of 1 MiB in small models, with a norm beside each."""
    rows = 2048 if size_mib >= 32 else 128  # noqa: PLR2004 -- at least two matrices
    count = size_mib * 1024 * 1024 // (rows * 4096 * 2)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(count):
        shapes[f"layers.{layer:03}.weight"] = (rows, 4096)
        shapes[f"layers.{layer:03}.norm"] = (4096,)
    return shapes


def small_shapes(size_mib: int) -> dict[str, tuple[int, ...]]:
    """Tensors of 16 KiB of bf16, as a finely split mixture of experts has."""
    return {f"experts.{index:06}.weight": (128, 64) for index in range(size_mib * 64)}
