"""What all layers of attention share: projections, heads, how they begin, refusals."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from everyformer.errors import InputError, refuse
from everyformer.layers.key_cache import KeyCache
from everyformer.layers.models.token_input import check_device, check_tokens
from everyformer.layers.offsets import check_positive
from everyformer.layers.pair_masks import pair_mask

Implementation = Literal["auto", "reference"]

IMPLEMENTATIONS = ("auto", "reference")


class Heads(NamedTuple):
    """Queries, keys and values as attention takes them.

    Attributes:
        q: Queries.
        k: Keys, of every group of heads.
        v: Values, of every group of heads.
        padding: True for keys that nobody sees.
        mask: On pairs, as `pair_mask` makes it.
        offset: Query i stands at place i + offset, key j at place j.
        seed: Of the operator's dropout; None where it does not drop.
        first: Number of the first query, which decides with the seed what is dropped.
    """

    q: Float[Tensor, "b h n_q d"]
    k: Float[Tensor, "b h_k n_k d"]
    v: Float[Tensor, "b h_k n_k d"]
    padding: Bool[Tensor, "b n_k"] | None
    mask: Tensor | None
    offset: int
    seed: Int[Tensor, "1"] | None = None
    first: int = 0

    def of_queries(self, some: slice) -> "Heads":
        """The same for queries that follow each other."""
        mask = self.mask
        if mask is not None and mask.shape[2] > 1:
            mask = mask[:, :, some]
        return self._replace(
            q=self.q[:, :, some],
            mask=mask,
            offset=self.offset + some.start,
            first=self.first + some.start,
        )


class SelfAttention(nn.Module):
    """Queries, keys and values of each head, and the output of all heads together.

        [q_i k_i v_i] = x_i W_in^T + b_in,        y_i = [o_i^1 .. o_i^h] W_out^T + b_out

    A subclass says how a head makes o of q, k and v. The names in the state dict are those
    of `torch.nn.MultiheadAttention`. With fewer `kv_heads` the rows of W_in that make keys
    and values are fewer.

    Args:
        embed_dim: Size of a token.
        num_heads: Number of heads; a head has embed_dim / num_heads coordinates.
        kv_heads: Number of heads of keys and values, which num_heads is a multiple of;
            None for num_heads.
        bias: Whether queries, keys, values and the output have biases.
        dropout: Probability of dropping a weight in training.
        scale: Of q . k.
        implementation: "auto", or "reference" for plain torch always.
        device: As in torch.
        dtype: As in torch.
    """

    least_tokens = 0
    """The shortest sequence."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kv_heads: int | None,
        bias: bool,
        dropout: float,
        scale: float,
        implementation: Implementation,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Make the projections; `check_settings` has seen the settings."""
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.kv_heads = num_heads if kv_heads is None else kv_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = float(dropout)
        self.scale = float(scale)
        self.implementation = implementation
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        rows = (num_heads + 2 * self.kv_heads) * self.head_dim
        self.in_proj_weight = nn.Parameter(torch.empty(rows, embed_dim, **made))
        biases = nn.Parameter(torch.empty(rows, **made)) if bias else None
        self.in_proj_bias = biases
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The projections as in `torch.nn.MultiheadAttention`; all else stays."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def _place(
        self, q: Tensor, k: Tensor, first_query: int, first_key: int
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys as they enter the logits, the first of each at these places."""
        return q, k

    def _project(
        self,
        x: Float[Tensor, "*batch n_q d"],
        padding: Bool[Tensor, "*batch n"] | None,
        mask: Tensor | None = None,
        *,
        context: Float[Tensor, "*batch n_k d"] | None = None,
        offset: int | None = None,
        cache: KeyCache | None = None,
    ) -> Heads:
        """Queries of x; keys and values of x and the tokens before, or of a context.

        Raises:
            InputError: If shapes or dtypes do not fit, nor what is held in the cache.
        """
        heard = x if context is None else context
        check_tokens(
            self, x, self.embed_dim, None if heard is not x else padding, self.least_tokens
        )
        check_device(self, self.in_proj_weight, x)
        if context is not None:
            _check_context(self, x, context, padding, offset)
        elif offset is not None:
            msg = (
                f"offset={offset} was given without a context: the places of a sequence's "
                "own tokens are known. Leave it out."
            )
            raise InputError(msg)
        batch, n_q, new = math.prod(x.shape[:-2]), x.shape[-2], heard.shape[-2]
        if padding is not None:
            padding = padding.reshape(batch, new)
        past = cache.length if cache is not None and context is None else 0
        place = past if offset is None else offset
        full = None
        if mask is not None:
            full = pair_mask(mask, x.shape[:-2], self.num_heads, n_q, past + new, x.device)
        sizes = [self.num_heads, self.kv_heads, self.kv_heads]
        if context is None:
            q, k, v = self._linear(x).split(sizes, 1)
            q, k = self._place(q, k, past, past)
            if cache is not None:
                k, v, padding = cache.extended(self, k, v, padding)
            return Heads(q, k, v, padding, full, place)
        q = self._linear(x, 0, sizes[0])
        held = None if cache is None else cache.of_context(self, context)
        if held is None:
            k, v = self._linear(context, sizes[0], sum(sizes)).split(sizes[1:], 1)
            q, k = self._place(q, k, place, 0)
            if cache is not None:
                cache.take_context(self, context, k, v)
        else:
            (k, v), (q, _) = held, self._place(q, held[0][:, :, :0], place, 0)
        return Heads(q, k, v, padding, full, place)

    def _linear(
        self, x: Tensor, first: int = 0, last: int | None = None
    ) -> Float[Tensor, "b heads n d"]:
        """The rows of W_in from head `first` on to `last`, applied to tokens."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if last is not None:
            rows = slice(first * self.head_dim, last * self.head_dim)
            weight, bias = weight[rows], None if bias is None else bias[rows]
        shape = (math.prod(x.shape[:-2]), x.shape[-2], weight.shape[0] // self.head_dim)
        return (
            nn.functional.linear(x, weight, bias)
            .reshape(*shape, self.head_dim)
            .transpose(1, 2)
        )

    def _output(
        self, mixed: Float[Tensor, "b h n d"], weights: Tensor | None, like: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The output of all heads, with the batch of the input; and the weights, if any."""
        out = self.out_proj(mixed.transpose(1, 2).reshape(like.shape))
        if weights is None:
            return out
        return out, weights.reshape(*like.shape[:-2], *weights.shape[1:])

    def _drops(self) -> bool:
        """Whether weights are dropped now."""
        return self.training and self.dropout > 0.0


def _check_context(
    layer: SelfAttention,
    x: Tensor,
    context: Tensor,
    padding: Tensor | None,
    offset: object,
) -> None:
    """Refuse a context that does not fit the tokens."""
    check_tokens(layer, context, layer.embed_dim, None, 1, "context")
    check_device(layer, layer.in_proj_weight, context, "context")
    if context.shape[:-2] != x.shape[:-2]:
        msg = (
            f"x has the batch {tuple(x.shape[:-2])}, the context "
            f"{tuple(context.shape[:-2])}. Give every sequence its own context; "
            "`expand` shares one."
        )
        raise InputError(msg)
    if offset is not None and (not isinstance(offset, int) or isinstance(offset, bool)):
        msg = f"offset={offset!r} is not a place: give a whole number, 0 for equal places."
        raise InputError(msg)
    check_tokens(layer, context, layer.embed_dim, padding, 1, "context")


def check_settings(
    layer: object,
    embed_dim: int,
    num_heads: int,
    kv_heads: int | None,
    dropout: float,
    implementation: str,
    others: Sequence[str] = (),
) -> None:
    """Refuse settings that no layer of attention can have.

    Args:
        layer: What they are for.
        embed_dim: Size of a token.
        num_heads: Number of heads.
        kv_heads: Number of heads of keys and values; None for num_heads.
        dropout: Probability of dropping a weight.
        implementation: Which one is asked for.
        others: What is wrong besides.

    Raises:
        InputError: With all reasons at once.
    """
    heads = num_heads if kv_heads is None else kv_heads
    check_positive(embed_dim=embed_dim, num_heads=num_heads, kv_heads=heads)
    wrong: list[str] = []
    if num_heads % heads:
        wrong.append(
            f"num_heads={num_heads} is not a multiple of kv_heads={heads}, so that groups "
            "of heads with the same keys would have unequal sizes"
        )
    if embed_dim % num_heads:
        multiple = num_heads * -(-embed_dim // num_heads)
        wrong.append(
            f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}, so heads "
            f"would have unequal sizes; the next multiple is {multiple}"
        )
    if not 0.0 <= dropout < 1.0:
        wrong.append(
            f"dropout={dropout} is not a probability below 1; give a number in [0, 1)"
        )
    if implementation not in IMPLEMENTATIONS:
        wrong.append(
            f"implementation={implementation!r} is unknown; use 'auto' or 'reference'"
        )
    wrong += others
    refuse(f"{type(layer).__name__} cannot be made", wrong)
