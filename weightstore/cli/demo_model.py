"""The model and the training loop of `weightstore demo`: small, real, and RL-shaped.

A decoder-only transformer samples continuations, a reward counts the tokens that fall in
a target set, and a policy-gradient step moves fp32 master weights with AdamW at a learning
rate of post-training. The share of bf16 elements that change per step is then what real
post-training shows (about 1 %), not what a large random step would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from weightstore.errors import InputRefusedError
from weightstore.storage.buffers import byte_view

LogitsOf = Callable[[torch.Tensor], torch.Tensor]

_LOADING_ERRORS = (
    OSError, ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError,
    SafetensorError,
)  # fmt: skip
"""What transformers raises for a directory that it cannot make a model of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoShape:
    """Sizes of the built-in transformer; the defaults give 29.4 million parameters."""

    vocabulary_size: int = 8192
    width: int = 512
    layer_count: int = 8
    head_count: int = 8
    context_count: int = 64


class Block(nn.Module):
    """Pre-norm attention and a gated-free MLP of four times the width."""

    def __init__(self, shape: DemoShape) -> None:
        super().__init__()
        self.head_count = shape.head_count
        self.attention_norm = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp_up = nn.Linear(shape.width, 4 * shape.width)
        self.mlp_down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, token, width) to the same shape."""
        batch, tokens, width = hidden.shape
        qkv = self.qkv(self.attention_norm(hidden))
        query, key, value = (
            part.view(batch, tokens, self.head_count, -1).transpose(1, 2)
            for part in qkv.split(width, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(hidden.shape))
        up = nn.functional.gelu(self.mlp_up(self.mlp_norm(hidden)))
        return hidden + torch.as_tensor(self.mlp_down(up))


class DemoTransformer(nn.Module):
    """Decoder-only transformer with a tied head, initialised as GPT-2 is (std 0.02)."""

    def __init__(self, shape: DemoShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary_size, shape.width)
        self.position = nn.Embedding(shape.context_count, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layer_count))
        self.final_norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary_size, bias=False)
        self.head.weight = self.embedding.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, token) indices to (batch, token, vocabulary) logits."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens) + self.position(places)
        for block in self.blocks:
            hidden = block(hidden)
        return torch.as_tensor(self.head(self.final_norm(hidden)))


@dataclass(frozen=True, slots=True)
class Policy:
    """A model to train, how to get its logits, and the size of its vocabulary."""

    module: nn.Module
    logits_of: LogitsOf
    vocabulary_size: int

    @property
    def parameter_count(self) -> int:
        """Number of distinct parameters."""
        return sum(parameter.numel() for parameter in self.module.parameters())


def built_in_policy(*, seed: int) -> Policy:
    """The built-in transformer with fp32 weights drawn from a seed."""
    torch.manual_seed(seed)
    shape = DemoShape()
    model = DemoTransformer(shape)
    return Policy(model, model, shape.vocabulary_size)


def pretrained_policy(directory: Path) -> Policy:
    """A Hugging Face causal model from a local directory, as fp32 masters.

    Raises:
        InputRefusedError: transformers is not installed, there is no such directory, or it
            holds no model that transformers loads.
    """
    if not directory.is_dir():
        # transformers would take the words for a name on the hub and ask the network.
        raise InputRefusedError(
            f"--model {directory} is no directory",
            do="Name a local directory of a Hugging Face causal model, or leave --model out.",
            facts={"model": str(directory)},
        )
    try:
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 -- heavy and optional
    except ImportError as error:
        raise InputRefusedError(
            "--model needs the package transformers",
            do="Install weightstore[hf], or leave --model out.",
        ) from error
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
        vocabulary_size = int(model.config.vocab_size)
    except _LOADING_ERRORS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputRefusedError(
            f"transformers cannot load a causal model from {directory}: {reason}",
            do="Name a directory with config.json and safetensors files, or leave --model out.",
            facts={"model": str(directory), "cause": type(error).__name__},
        ) from error

    def logits_of(tokens: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(model(input_ids=tokens).logits)

    return Policy(model, logits_of, vocabulary_size)


class PolicyGradient:
    """REINFORCE with a batch baseline: one call of `step` is one optimizer step.

    Args:
        policy: What is trained.
        learning_rate: Of AdamW on fp32 masters.
        seed: For prompts and samples.
    """

    BATCH_COUNT = 8
    PROMPT_COUNT = 8
    COMPLETION_COUNT = 12

    def __init__(self, policy: Policy, *, learning_rate: float, seed: int) -> None:
        self._policy = policy
        self._optimizer = torch.optim.AdamW(policy.module.parameters(), lr=learning_rate)
        self._generator = torch.Generator().manual_seed(seed)

    def step(self) -> float:
        """Sample, score, update; the mean reward, between 0 and 1."""
        tokens = self._rollout()
        completion = tokens[:, self.PROMPT_COUNT :]
        reward = (completion % 2 == 0).float().mean(dim=1)
        advantage = reward - reward.mean()
        logits = self._policy.logits_of(tokens[:, :-1])[:, self.PROMPT_COUNT - 1 :]
        chosen = torch.log_softmax(logits.float(), dim=-1).gather(-1, completion[..., None])
        loss = -(chosen.squeeze(-1).mean(dim=1) * advantage).mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call] # torch leaves it without types
        self._optimizer.step()
        return float(reward.mean())

    @torch.no_grad()
    def _rollout(self) -> torch.Tensor:
        size = (self.BATCH_COUNT, self.PROMPT_COUNT)
        tokens = torch.randint(self._policy.vocabulary_size, size, generator=self._generator)
        for _ in range(self.COMPLETION_COUNT):
            weights = torch.softmax(self._policy.logits_of(tokens)[:, -1].float(), dim=-1)
            sampled = torch.multinomial(weights, 1, generator=self._generator)
            tokens = torch.cat([tokens, sampled], dim=1)
        return tokens


def bf16_fingerprints(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Name to the SHA-256 of the tensor's bytes after torch's own cast to bf16."""
    return {
        name: hashlib.sha256(
            byte_view(tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().data)
        ).hexdigest()
        for name, tensor in weights.items()
    }
