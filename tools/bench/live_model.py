"""A torch model whose parameters are the weights of a bench."""

from __future__ import annotations

import numpy as np
import torch

from tools.bench.weights import Weights


class Live:
    """A torch model of parameters with the names and bits of weights."""

    def __init__(self, weights: Weights) -> None:
        self.model = torch.nn.Module()
        for name, tensor in tensors_of(weights).items():
            self.model.register_parameter(
                name.replace(".", "/"), torch.nn.Parameter(tensor.clone(), requires_grad=False)
            )

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """By the names of the weights."""
        return {name.replace("/", "."): each for name, each in self.model.named_parameters()}

    def holds(self, weights: Weights) -> bool:
        """Whether the parameters have exactly these bits."""
        found = self.parameters
        return all(
            np.array_equal(found[name].view(torch.uint16).numpy().reshape(-1), each.units)
            for name, each in weights.items()
        )


def tensors_of(weights: Weights) -> dict[str, torch.Tensor]:
    """The bits as bf16 tensors that share their memory."""
    return {
        name: torch.from_numpy(each.units.view(np.int16))
        .view(torch.bfloat16)
        .reshape(each.spec.shape)
        for name, each in weights.items()
    }
