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

from everyformer.errors import InputError, refuse
from everyformer.layers.key_cache import KeyCache, check_cache
from everyformer.layers.models.token_input import check_tokens
from everyformer.layers.pair_masks import chosen_rows, runs
from everyformer.layers.self_attention import (
    Heads,
    Implementation,
    SelfAttention,
    check_settings,
)
from everyformer.layers.some_queries import (
    attend_some,
    pair_weights,
    seed_of_group,
)
from everyformer.layers.weights import for_all_heads
from everyformer.ops.sparse_attention.operator import attend
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.patterns import Part, Pattern, Recipe

Configuration = Literal["sequential", "union", "multihead"]

CONFIGURATIONS = ("sequential", "union", "multihead")

SETTINGS = ("pattern", "configuration", "layer_index")
"""Attributes that decide on the parts; they may be set anew, as in a copy of a layer."""

MOST_LENGTHS = 32
"""Lengths whose patterns a layer keeps."""


_numbers = itertools.count()
_LAYERS: "weakref.WeakValueDictionary[int, SparseAttention]" = weakref.WeakValueDictionary()


class SparseAttention(SelfAttention):
    """Multi-head attention in which token k attends to the tokens of A_k alone.

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
        pattern: The pattern; or a function that makes one for n tokens, for sequences of
            different lengths: `patterns.recipe("strided", width=16, causal=True)`,
            `patterns.star`, or `pattern.first` for the first tokens of a pattern. It is
            called once for each length.
        kv_heads: Number of heads of keys and values, each for num_heads / kv_heads heads of
            queries; None for num_heads, 1 for keys and values that all heads share.
        configuration: How several patterns are used.
        layer_index: Which layer of a network this is, from 0 on; for "sequential".
        bias: Whether queries, keys, values and the output have biases.
        dropout: Probability of dropping a weight in training, inside the kernels. All
            weights (`need_weights`), `attn_mask`, and a layer that is exported take n x n
            numbers.
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
        kv_heads: int | None = None,
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
        check_settings(
            self, embed_dim, num_heads, kv_heads, dropout, implementation, others
        )
        super().__init__(
            embed_dim,
            num_heads,
            kv_heads=kv_heads,
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
        context: Float[Tensor, "*batch n_k d"] | None = None,
        offset: int | None = None,
        cache: KeyCache | None = None,
        key_padding_mask: Bool[Tensor, "*batch n_k"] | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool | slice | Tensor = False,
    ) -> Float[Tensor, "*batch n d"] | tuple[Tensor, Float[Tensor, "*batch h rows keys"]]:
        """Attend from every token to those of its set.

        Args:
            x: Tokens.
            context: Tokens to attend to instead of x. The pattern is for them, and token i
                of x attends to those of A_{i + offset}.
            offset: Place of the first token of x among those of the context.
            cache: Of this layer, whose pattern must be causal: x follows the tokens that it
                holds. A function makes the pattern for `max_len` tokens of the cache. With
                a context, holds the keys of that.
            key_padding_mask: True for tokens of x, or of the context, that nobody sees, as
                in `torch.nn.MultiheadAttention`. A token that sees nobody gets only the
                bias of the output.
            attn_mask: Of a shape that broadcasts to (*batch, heads, queries, keys): True
                where a pair counts, as in `scaled_dot_product_attention`, if the pattern
                has it; or numbers that are added to the logits,
                of which those up to -1e30 hide their pair.
            need_weights: Whether to return the weights of all heads too; a slice, or
                numbers in a tensor, for those of some queries alone.

        Returns:
            The outputs, and with `need_weights` the pair of outputs and weights.

        Raises:
            InputError: If shapes, dtypes or the number of tokens do not fit, or what is
                asked for has no meaning.
        """
        check_cache(cache)
        alone = context is None and cache is None
        of_tokens = key_padding_mask if alone else None
        check_tokens(self, x, self.embed_dim, of_tokens, self.least_tokens)
        rows = chosen_rows(need_weights, x.shape[-2])
        n = x.shape[-2]
        if not alone:
            n = self._length_of_pattern(x, context, offset, cache)
        heads = self._project(
            x, key_padding_mask, attn_mask, context=context, offset=offset, cache=cache
        )
        if self._drops():
            heads = heads._replace(seed=torch.randint(2**63 - 1, (1,), device=x.device))
        weights = None
        if not alone and not heads.q.shape[-2] == heads.k.shape[-2] == n:
            mixed, weights = self._some(heads, n, need_weights is not False)
        elif need_weights is True or self._needs_all_pairs(heads):
            weights = self._weights(heads)
            mixed = weights @ for_all_heads(heads.v, self.num_heads)
        else:
            mixed = self._fast(heads)
            if rows is not None:
                found = [self._some(heads.of_queries(r), n, True)[1] for r in runs(rows)]
                none = heads.q.new_empty(*heads.q.shape[:2], 0, n)
                weights = torch.cat([none, *(one for one in found if one is not None)], 2)
                rows = None
        if rows is not None and weights is not None:
            weights = weights[:, :, rows]
        if cache is not None:
            cache.keep()
        return self._output(mixed, None if need_weights is False else weights, x)

    def extra_repr(self) -> str:
        """The settings."""
        pattern = self.pattern
        name = "made for each length"
        if isinstance(pattern, Pattern | Recipe):
            name = str(pattern) if isinstance(pattern, Recipe) else pattern.name
        return (
            f"{self.embed_dim}, {self.num_heads}, kv_heads={self.kv_heads}, "
            f"pattern: {name}, "
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

    def __setattr__(self, name: str, value: Any) -> None:
        """Prepare again where a setting of the pattern changes; what is wrong stays out."""
        before: Any = self.__dict__.get(name)
        super().__setattr__(name, value)
        if name not in SETTINGS or "_parts" not in self.__dict__:
            return
        try:
            others = _wrong_settings(self.pattern, self.configuration, self.layer_index)
            refuse(f"SparseAttention cannot have this {name}", others)
            self._forget()
        except InputError:
            super().__setattr__(name, before)
            self._forget()
            raise

    def _forget(self) -> None:
        """Prepare nothing but the length that is known, under a number of its own."""
        self._number = next(_numbers)
        _LAYERS[self._number] = self
        self._parts: dict[int, tuple[Part, ...]] = {}
        if isinstance(self.pattern, Pattern):
            self.for_length(self.pattern.n)

    def _needs_all_pairs(self, heads: Heads) -> bool:
        """Whether no code that knows the pattern computes what is asked for."""
        # An exported graph must run where nobody knows this pattern.
        plain = self.implementation == "reference" or _is_exported()
        return plain or heads.mask is not None or heads.q.shape[0] == 0

    def _fast(self, heads: Heads) -> Float[Tensor, "b h n d"]:
        """The outputs of all heads, by code that knows the pattern."""
        # range makes n a plain number for torch.compile: a pattern has one length.
        handles = _handles_for(self._number, len(range(heads.q.shape[-2])))
        size = self.num_heads // len(handles)
        k, v = (for_all_heads(y, self.num_heads) for y in (heads.k, heads.v))
        dropout = 0.0 if heads.seed is None else self.dropout
        groups = (y.split(size, 1) for y in (heads.q, k, v))
        found = [
            attend(
                *given,
                scale=self.scale,
                key_padding=heads.padding,
                dropout=dropout,
                seed=seed_of_group(heads.seed, group),
            )
            for group, given in enumerate(zip(*groups, handles, strict=True))
        ]
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def _weights(self, heads: Heads) -> Float[Tensor, "b h n n"]:
        """All weights, in plain torch."""
        n = heads.q.shape[-2]
        hidden = self._hidden(n).to(heads.q.device)[None]
        k = for_all_heads(heads.k, self.num_heads)
        dropout = 0.0 if heads.seed is None else self.dropout
        return pair_weights(
            heads.q, k, hidden, heads.padding, heads.mask, self.scale, dropout
        )

    def _some(
        self, heads: Heads, n: int, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs and weights of some queries of the pattern for n tokens."""
        dropout = 0.0 if heads.seed is None else self.dropout
        return attend_some(heads, self.for_length(n), self.scale, dropout, need_weights)

    def _hidden(self, n: int) -> Bool[Tensor, "h n n"]:
        """Which keys each head does not see, of n tokens; for export, of any up to n."""
        if not isinstance(n, torch.SymInt):
            return _hidden_for(self._number, len(range(n)))
        if not isinstance(self.pattern, Pattern):
            msg = (
                "A graph for any number of tokens cannot call the function that makes the "
                "pattern. Give the layer the pattern of the longest sequence, or export it "
                "for one length."
            )
            raise InputError(msg)
        torch._check(n <= self.pattern.n)  # pyright: ignore[reportPrivateUsage]
        some = torch.arange(n)
        hidden = _hidden_for(self._number, self.pattern.n)
        return hidden.index_select(1, some).index_select(2, some)

    def _length_of_pattern(
        self,
        x: Tensor,
        context: Tensor | None,
        offset: int | None,
        cache: KeyCache | None,
    ) -> int:
        """How many tokens the pattern is for, with a context or a cache.

        Raises:
            InputError: If these have no meaning with this pattern.
        """
        n_q = x.shape[-2]
        if context is not None:
            check_tokens(self, context, self.embed_dim, None, 1, "context")
            n = context.shape[-2]
            if isinstance(n, torch.SymInt):
                msg = (
                    "A graph for any number of tokens cannot have a context over a "
                    "pattern: which tokens are heard is written into it. Export it for one "
                    "length of the context; the batch may be dynamic."
                )
                raise InputError(msg)
            wrong = _wrong_offset(n_q, n, offset)
            refuse("SparseAttention cannot run", [] if wrong is None else [wrong])
            self.for_length(n)
            return n
        past, most = (0, None) if cache is None else (cache.length, cache.max_len)
        n = self.pattern.n if isinstance(self.pattern, Pattern) else most
        if n is None:
            msg = (
                "SparseAttention cannot run: the pattern is made for each length, and a "
                "cache that grows has none. Give the layer a pattern, or the cache a "
                "max_len."
            )
            raise InputError(msg)
        ahead = next((one for one in self.for_length(n) if not one.is_causal), None)
        if ahead is not None:
            msg = (
                f"SparseAttention cannot run: with a cache, tokens attend to earlier ones, "
                f"but in the pattern ({ahead.kind}) some attend to later ones. Take "
                "pattern.causal_part()."
            )
            raise InputError(msg)
        if past + n_q > n:
            msg = (
                f"SparseAttention cannot run: the cache holds {past} tokens, and "
                f"{n_q} more are beyond the pattern, which is for n={n}. Give a longer one."
            )
            raise InputError(msg)
        return n

    def _check_pattern(self, pattern: object, n: int) -> None:
        wrong: list[str] = []
        if not isinstance(pattern, Pattern):
            wrong.append(f"for n={n} the function gave {pattern!r}, which is not a pattern")
        elif pattern.n != n:
            wrong.append(
                f"there are {n} tokens, but the pattern {pattern.name!r} is for "
                f"n={pattern.n}; pad the sequence and hide the padding, or give a function "
                "that makes a pattern for n tokens: patterns.recipe(..), or pattern.first "
                "for shorter sequences"
            )
        elif self.configuration == "multihead" and self.num_heads % pattern.p:
            wrong.append(
                f"num_heads={self.num_heads} cannot be shared equally by the p={pattern.p} "
                f"patterns of {pattern.name!r}; take a multiple of {pattern.p}, or the "
                "configuration 'sequential' or 'union'"
            )
        refuse("SparseAttention cannot run", wrong)


def _wrong_offset(n_q: int, n: int, offset: object) -> str | None:
    """Why tokens of x have no places among those of a context; None if they have."""
    if n_q > n:
        return (
            f"x has {n_q} tokens and the context {n}, but the pattern is for these, and "
            "token i of x has a place among them: fill up the context to at least "
            f"{n_q} tokens and hide what was added with key_padding_mask, or use "
            "RelativeAttention, which attends to all"
        )
    if isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= n - n_q:
        return None
    return (
        f"the {n_q} tokens of x need places among the {n} of the context, since the "
        f"pattern is for these; offset={offset!r}. Give offset= from 0 to {n - n_q}, a "
        "whole number, or use RelativeAttention, which attends to all"
    )


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
    number = -1 if isinstance(layer_index, bool) else layer_index
    if not isinstance(number, int) or number < 0:
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
