"""Self-attention over a sparse pattern, trainable: the layer of a sparse Transformer."""

import itertools
import math
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from everyformer.errors import InputError
from everyformer.layers.self_attention import (
    Implementation,
    SelfAttention,
    check_settings,
)
from everyformer.layers.weights import attention_weights, scores
from everyformer.ops.sparse_attention.operator import attend
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.patterns import Part, Pattern

Configuration = Literal["sequential", "union", "multihead"]

CONFIGURATIONS = ("sequential", "union", "multihead")

MOST_LENGTHS = 32
"""Lengths whose patterns a layer keeps."""


_numbers = itertools.count()
_LAYERS: "weakref.WeakValueDictionary[int, SparseAttention]" = weakref.WeakValueDictionary()


class SparseAttention(SelfAttention):
    """Multi-head self-attention in which token k attends to the tokens of A_k alone.

        o_k = sum_{j in A_k} softmax_{j in A_k}(scale q_k . k_j) v_j

    A family of p patterns is used in one of three ways (Yun et al. 2020b):

    | configuration | a layer uses |
    |---|---|
    | sequential | the pattern with number `layer_index` mod p |
    | union | A_k = the union of all A^l_k |
    | multihead | pattern l for the l-th of p equal groups of heads |

    Time and memory follow the number of connections, forward and backward, on a GPU and on
    a CPU. The names in the state dict are those of `torch.nn.MultiheadAttention`; nothing
    in it depends on the number of tokens.

    Args:
        embed_dim: Size of a token.
        num_heads: Number of heads; a head has embed_dim / num_heads coordinates.
        pattern: The pattern; or a function that makes one for n tokens, such as
            `patterns.star`, for sequences of different lengths.
        configuration: How several patterns are used.
        layer_index: Which layer of a network this is, from 0 on; for "sequential".
        bias: Whether queries, keys, values and the output have biases.
        dropout: Probability of dropping a weight in training. This and `need_weights` run
            in plain torch with n x n weights, and so does a layer that is exported.
        scale: Of q . k; by default 1 / sqrt(d_head).
        implementation: "auto", or "reference" for plain torch always.
        device: As in torch.
        dtype: As in torch.

    Raises:
        InputError: If the sizes do not fit; all reasons at once.

    Example:
        >>> from everyformer import patterns
        >>> layer = SparseAttention(8, 2, patterns.strided(9, 3), configuration="multihead")
        >>> layer(torch.ones(4, 9, 8)).shape
        torch.Size([4, 9, 8])
        >>> SparseAttention(8, 2, patterns.star)(torch.ones(5, 8)).shape
        torch.Size([5, 8])
    """

    least_tokens = 1

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        pattern: Pattern | Callable[[int], Pattern],
        *,
        configuration: Configuration = "sequential",
        layer_index: int = 0,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        implementation: Implementation = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        others = _wrong_settings(pattern, configuration, layer_index)
        check_settings(self, embed_dim, num_heads, dropout, implementation, others)
        super().__init__(
            embed_dim,
            num_heads,
            bias=bias,
            dropout=dropout,
            scale=1 / math.sqrt(embed_dim // num_heads) if scale is None else scale,
            implementation=implementation,
            device=device,
            dtype=dtype,
        )
        self.pattern = pattern
        self.configuration = configuration
        self.layer_index = layer_index
        self._forget()

    def for_length(self, n: int) -> tuple[Part, ...]:
        """The parts that n tokens are given: one, or one for each group of heads.

        Raises:
            InputError: If the pattern is for another number of tokens, or there are not as
                many heads as it needs.
        """
        if n not in self._parts:
            pattern = self.pattern if isinstance(self.pattern, Pattern) else self.pattern(n)
            self._check_pattern(pattern, n)
            parts = _shared_parts(pattern, self.configuration == "union")
            if self.configuration == "sequential":
                parts = (parts[self.layer_index % len(parts)],)
            while len(self._parts) >= MOST_LENGTHS:
                del self._parts[next(iter(self._parts))]
            self._parts[n] = parts
        return self._parts[n]

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        key_padding_mask: Bool[Tensor, "*batch n"] | None = None,
        need_weights: bool = False,
    ) -> Float[Tensor, "*batch n d"] | tuple[Tensor, Float[Tensor, "*batch h n n"]]:
        """Attend from every token to those of its set.

        Args:
            x: Tokens.
            key_padding_mask: True for tokens that nobody sees, as in
                `torch.nn.MultiheadAttention`. A token that sees nobody gets only the bias
                of the output.
            need_weights: Whether to return the weights of all heads too, n x n.

        Returns:
            The outputs, and with `need_weights` the pair of outputs and weights.

        Raises:
            InputError: If shapes, dtypes or the number of tokens do not fit.
        """
        q, k, v, padding = self._project(x, key_padding_mask)
        # An exported graph must run where nobody knows this pattern.
        plain = self.implementation == "reference" or _is_exported()
        weights = None
        if need_weights or self._drops() or plain or q.shape[0] == 0:
            weights = self._weights(q, k, padding)
            mixed = weights @ v
        else:
            # range makes n a plain number for torch.compile: a pattern has one length.
            handles = _handles_for(self._number, len(range(x.shape[-2])))
            heads = self.num_heads // len(handles)
            groups = (y.split(heads, 1) for y in (q, k, v))
            found = [
                attend(*given, scale=self.scale, key_padding=padding)
                for given in zip(*groups, handles, strict=True)
            ]
            mixed = found[0] if len(found) == 1 else torch.cat(found, 1)
        return self._output(mixed, weights if need_weights else None, x)

    def extra_repr(self) -> str:
        """The settings."""
        pattern = self.pattern
        name = pattern.name if isinstance(pattern, Pattern) else "made for each length"
        return (
            f"{self.embed_dim}, {self.num_heads}, pattern: {name}, "
            f"configuration={self.configuration!r}, layer_index={self.layer_index}, "
            f"dropout={self.dropout}, implementation={self.implementation!r}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Without what is prepared for lengths: a copy prepares its own."""
        return self.__dict__ | {"_parts": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Prepare again."""
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        """Prepare nothing but the length that is known, under a number of its own."""
        self._number = next(_numbers)
        _LAYERS[self._number] = self
        self._parts: dict[int, tuple[Part, ...]] = {}
        if isinstance(self.pattern, Pattern):
            self.for_length(self.pattern.n)

    def _weights(
        self, q: Tensor, k: Tensor, padding: Tensor | None
    ) -> Float[Tensor, "b h n n"]:
        """All weights, in plain torch."""
        hidden = _hidden_for(self._number, len(range(q.shape[-2]))).to(q.device)[None]
        if padding is not None:
            hidden = hidden | padding[:, None, None, :]
        return attention_weights(
            scores(q, k, self.scale),
            hidden,
            None,
            dtype=q.dtype,
            dropout=self.dropout if self.training else 0.0,
        )

    def _check_pattern(self, pattern: object, n: int) -> None:
        wrong: list[str] = []
        if not isinstance(pattern, Pattern):
            wrong.append(f"for n={n} the function gave {pattern!r}, which is not a pattern")
        elif pattern.n != n:
            wrong.append(
                f"there are {n} tokens, but the pattern {pattern.name!r} is for "
                f"n={pattern.n}; pad the sequence and hide the padding, or give a function "
                "that makes a pattern for n tokens"
            )
        elif self.configuration == "multihead" and self.num_heads % pattern.p:
            wrong.append(
                f"num_heads={self.num_heads} cannot be shared equally by the p={pattern.p} "
                f"patterns of {pattern.name!r}; take a multiple of {pattern.p}, or the "
                "configuration 'sequential' or 'union'"
            )
        if wrong:
            msg = f"SparseAttention cannot run: {'; '.join(wrong)}."
            raise InputError(msg)


def _wrong_settings(pattern: object, configuration: str, layer_index: object) -> list[str]:
    """What is wrong with the settings of a sparse layer alone."""
    wrong: list[str] = []
    if not isinstance(pattern, Pattern) and not callable(pattern):
        wrong.append(
            f"pattern={pattern!r} is not a pattern; give one of everyformer.patterns, or a "
            "function that makes one for n tokens"
        )
    if configuration not in CONFIGURATIONS:
        wrong.append(
            f"configuration={configuration!r} is unknown; use one of "
            f"{', '.join(CONFIGURATIONS)}"
        )
    if not isinstance(layer_index, int) or layer_index < 0:
        wrong.append(f"layer_index={layer_index!r} is not the number of a layer, 0 or more")
    return wrong


@torch.compiler.assume_constant_result
def _is_exported() -> bool:
    """Asked outside the graph: within one, torch.compile may answer for torch.export."""
    return torch.compiler.is_exporting()


@torch.compiler.assume_constant_result
def _handles_for(number: int, n: int) -> tuple[int, ...]:
    """What the operator knows the parts for n tokens by.

    By the number of a layer, since `torch.compile` takes numbers for constants, not layers.
    """
    return tuple(plan_of(part).handle for part in _LAYERS[number].for_length(n))


@torch.compiler.assume_constant_result
def _hidden_for(number: int, n: int) -> Bool[Tensor, "h n n"]:
    """Which keys each head of a layer does not see."""
    layer = _LAYERS[number]
    parts = layer.for_length(n)
    hidden = torch.stack([~torch.tensor(part.mask()) for part in parts])
    return hidden.repeat_interleave(layer.num_heads // len(parts), 0)


@lru_cache(maxsize=64)
def _shared_parts(pattern: Pattern, union: bool) -> tuple[Part, ...]:
    """The parts of a pattern; layers with equal patterns share them, and their plans."""
    return pattern.union().parts if union else pattern.parts
