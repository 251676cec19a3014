"""Self-attention over a sparse pattern, trainable: the layer of a sparse Transformer."""

import itertools
import math
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.offsets import check_positive
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


class SparseAttention(nn.Module):
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
        implementation: Literal["auto", "reference"] = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """See the class."""
        super().__init__()
        check_positive(embed_dim=embed_dim, num_heads=num_heads)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.pattern = pattern
        self.configuration = configuration
        self.layer_index = layer_index
        self.dropout = float(dropout)
        self.implementation = implementation
        self._check_settings()
        self.head_dim = embed_dim // num_heads
        self.scale = 1 / math.sqrt(self.head_dim) if scale is None else float(scale)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **made))
        biases = nn.Parameter(torch.empty(3 * embed_dim, **made)) if bias else None
        self.in_proj_bias = biases
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **made)
        self._forget()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As in `torch.nn.MultiheadAttention`."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

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
        self._check_input(x, key_padding_mask)
        batch, n = x.shape[:-2].numel(), x.shape[-2]
        projected = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        packed = projected.reshape(batch, n, 3, self.num_heads, self.head_dim)
        q, k, v = packed.permute(2, 0, 3, 1, 4)  # each [b, h, n, d]
        padding = None if key_padding_mask is None else key_padding_mask.reshape(batch, n)
        dropped = self.training and self.dropout > 0.0
        # An exported graph must run where nobody knows this pattern.
        plain = self.implementation == "reference" or _is_exported()
        weights = None
        if need_weights or dropped or plain or batch == 0:
            weights = self._weights(q, k, padding)
            mixed = weights @ v
        else:
            # range makes n a plain number for torch.compile: a pattern has one length.
            handles = _handles_for(self._number, len(range(n)))
            heads = self.num_heads // len(handles)
            groups = (y.split(heads, 1) for y in (q, k, v))
            found = [
                attend(*given, scale=self.scale, key_padding=padding)
                for given in zip(*groups, handles, strict=True)
            ]
            mixed = found[0] if len(found) == 1 else torch.cat(found, 1)
        out = self.out_proj(mixed.transpose(1, 2).reshape(x.shape))
        if not need_weights or weights is None:
            return out
        return out, weights.reshape(*x.shape[:-2], self.num_heads, n, n)

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

    def _check_settings(self) -> None:
        wrong: list[str] = []
        if self.embed_dim % self.num_heads:
            multiple = self.num_heads * -(-self.embed_dim // self.num_heads)
            wrong.append(
                f"embed_dim={self.embed_dim} is no multiple of num_heads={self.num_heads}, "
                f"so heads would have unequal sizes; the next multiple is {multiple}"
            )
        if not isinstance(self.pattern, Pattern) and not callable(self.pattern):
            wrong.append(
                f"pattern={self.pattern!r} is no pattern; give one of "
                "everyformer.patterns, or a function that makes one for n tokens"
            )
        if self.configuration not in CONFIGURATIONS:
            wrong.append(
                f"configuration={self.configuration!r} is unknown; use one of "
                f"{', '.join(CONFIGURATIONS)}"
            )
        if not isinstance(self.layer_index, int) or self.layer_index < 0:
            wrong.append(
                f"layer_index={self.layer_index!r} is no number of a layer, 0 or more"
            )
        if not 0.0 <= self.dropout < 1.0:
            wrong.append(f"dropout={self.dropout} is not in [0, 1)")
        if self.implementation not in ("auto", "reference"):
            wrong.append(
                f"implementation={self.implementation!r} is unknown; use 'auto' or "
                "'reference'"
            )
        if wrong:
            msg = f"SparseAttention cannot be made: {'; '.join(wrong)}."
            raise InputError(msg)

    def _check_pattern(self, pattern: object, n: int) -> None:
        wrong: list[str] = []
        if not isinstance(pattern, Pattern):
            wrong.append(f"for n={n} the function gave {pattern!r}, which is no pattern")
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

    def _check_input(self, x: Tensor, mask: Tensor | None) -> None:
        wrong: list[str] = []
        if x.dim() < 2 or x.shape[-1] != self.embed_dim or x.shape[-2] == 0:
            wrong.append(
                f"x has shape {tuple(x.shape)}; the layer needs (*batch, n, "
                f"{self.embed_dim}), tokens as rows and at least one"
            )
        if not x.is_floating_point():
            wrong.append(f"x has dtype {x.dtype}; give floating-point numbers")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:-1]):
            wrong.append(
                f"key_padding_mask has shape {tuple(mask.shape)} and dtype {mask.dtype}; "
                f"give one bool per token, {tuple(x.shape[:-1])}"
            )
        if wrong:
            msg = f"SparseAttention cannot run: {'; '.join(wrong)}."
            raise InputError(msg)


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
