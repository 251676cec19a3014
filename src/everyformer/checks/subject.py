"""What is checked: a module that maps tokens to tokens, and what it says of itself."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import nn

from everyformer.checks.calling import call
from everyformer.checks.following.walk import Followed, follow
from everyformer.checks.mixing import mixing_matrices
from everyformer.errors import InputError
from everyformer.model.attention_spec import AttentionSpec, spec_of


@dataclass(frozen=True)
class Trial:
    """A module with one choice of weights.

    Attributes:
        module: The module.
        seed: What the weights were drawn from; None for those it came with.
    """

    module: nn.Module
    seed: int | None

    def output(self, X: np.ndarray) -> np.ndarray:
        """g(X), both of shape (n, d)."""
        with torch.no_grad():
            return call(self.module, _batch_of_one(X))[0].numpy()

    def outputs(self, sequences: np.ndarray) -> np.ndarray:
        """g of many sequences, both of shape (count, n, d)."""
        return np.stack([self.output(X) for X in sequences])

    def matrices(self, X: np.ndarray) -> list[np.ndarray]:
        """The matrices A that multiply the values, each (n, n), as far as they are seen."""
        with torch.no_grad():
            return [A.numpy() for A in mixing_matrices(self.module, _batch_of_one(X))]


@dataclass(frozen=True)
class Subject:
    """A module to check, at one length and width.

    Attributes:
        name: What it is called in reports.
        module: The module in float64, not in training; None if only a spec is known.
        spec: What it says of itself, for all weights; None for a black box.
        seq_len: n.
        d_model: d.
    """

    name: str
    module: nn.Module | None
    spec: AttentionSpec | None
    seq_len: int
    d_model: int

    @classmethod
    def of(
        cls, module: nn.Module, seq_len: int, d_model: int, name: str | None = None
    ) -> "Subject":
        """Take a module that maps (batch, n, d) to the same shape.

        Raises:
            InputError: If it does not.
        """
        check_sizes(seq_len, d_model)
        shape = (1, seq_len, d_model)
        probe = torch.linspace(-1, 1, seq_len * d_model, dtype=torch.float64).reshape(shape)
        try:
            own = copy.deepcopy(module).double().eval()
            for part in own.modules():
                if getattr(part, "implementation", None) == "auto":
                    part.implementation = "reference"  # type: ignore[assignment]
            with torch.no_grad():
                found, again = (call(own, probe.clone()) for _ in range(2))
        except Exception as error:
            msg = (
                f"{type(module).__name__} cannot be run on tokens of shape {shape}: "
                f"{type(error).__name__}: {str(error).strip()[:300]}. Give the n and d it "
                "was made for (--n, --d), or a module whose forward takes (batch, n, d)."
            )
            raise InputError(msg) from error
        if tuple(found.shape) != shape:
            msg = (
                f"{type(module).__name__} maps {shape} to {tuple(found.shape)}, so it is "
                "no map of sequences to sequences of one shape. Wrap it in one that is."
            )
            raise InputError(msg)
        if not torch.equal(found.nan_to_num(), again.nan_to_num()):
            msg = (
                f"{type(module).__name__} gives different outputs for the same input, so "
                "nothing can be said of it. Remove its randomness or its state."
            )
            raise InputError(msg)
        return cls(name or type(module).__name__, own, spec_of(module), seq_len, d_model)

    @cached_property
    def followed(self) -> Followed:
        """What its operations imply for all weights."""
        if self.module is None:
            return Followed(None, obstacle="no module was given")
        x = torch.zeros(1, self.seq_len, self.d_model, dtype=torch.float64)
        return follow(self.module, call, x)

    def not_followed(self, why: str) -> "Subject":
        """The same subject, whose operations are not to be believed."""
        again = replace(self)
        vars(again)["followed"] = Followed(None, obstacle=why)
        return again

    def trials(self, count: int, seed: int) -> Iterator[Trial]:
        """The module as it came, then with weights drawn anew."""
        if self.module is None or count < 1:
            return
        yield Trial(self.module, None)
        for k in range(count - 1):
            yield self.redrawn(seed + k)

    def redrawn(self, seed: int | None) -> Trial:
        """The module with weights drawn from a seed: tables, gains and biases too."""
        assert self.module is not None, "specs alone have no weights"  # noqa: S101
        if seed is None:
            return Trial(self.module, None)
        own = copy.deepcopy(self.module)
        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in own.parameters():
                fan = weight.shape[-1] if weight.ndim > 1 else 1
                drawn = torch.randn(weight.shape, generator=source, dtype=torch.float64)
                weight.copy_(drawn / fan**0.5)
        return Trial(own, seed)


def check_sizes(seq_len: int, d_model: int) -> None:
    """Refuse sizes that cannot be checked.

    Raises:
        InputError: If n < 2 or d < 1.
    """
    if seq_len < 2 or d_model < 1:
        msg = (
            f"n = {seq_len}, d = {d_model}: one token has no order and no context, so "
            "there is nothing to check. Use n >= 2 and d >= 1."
        )
        raise InputError(msg)


def _batch_of_one(X: np.ndarray) -> torch.Tensor:
    """A copy: a module may write into its input."""
    return torch.tensor(np.ascontiguousarray(X), dtype=torch.float64)[None]
