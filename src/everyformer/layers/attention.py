"""Self-attention with any encoding of relative positions, and with URPE on top of it."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError, refuse
from everyformer.layers.encodings import Encoding, encoding_by_name
from everyformer.layers.gains import Gain, HeadGain, ToeplitzGain
from everyformer.layers.graphs.graph import Graph
from everyformer.layers.key_cache import KeyCache, check_cache
from everyformer.layers.offsets import check_positive, collect_offsets, spread_offsets
from everyformer.layers.pair_masks import chosen_rows, masked_logits, runs
from everyformer.layers.self_attention import (
    Heads,
    Implementation,
    SelfAttention,
    check_settings,
)
from everyformer.layers.weights import (
    attention_weights,
    for_all_heads,
    hidden_pairs,
    operator_takes,
    scores,
)
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself
from everyformer.ops import (
    disentangled_attention,
    pairwise_attention,
    toeplitz_attention,
)
from everyformer.ops.disentangled_attention.operator import (
    MAX_HEAD_SIZE as MAX_BUCKETS_HEAD,
)
from everyformer.ops.dropping import kept_pairs
from everyformer.papers import LUO2022, implements

FEW_WEIGHTS = 2**20
"""Weights of a call on a CPU up to which plain torch is faster, and memory no matter."""


@describes_itself(out_proj=nn.Linear, encoding=Encoding, gain=Gain)
@implements(LUO2022, "Equation 8")
class RelativeAttention(SelfAttention):
    """Multi-head attention, tokens as rows: of a sequence to itself, or to a context.

        a_ij = dropout(c_ij softmax_j(scale q_i . k_j + b_ij))
        o_i = sum_j a_ij (v_j + r_ij)

    b and r come from `encoding`, c from `gain`; without them b = r = 0 and c = 1. The names
    in the state dict are those of `torch.nn.MultiheadAttention` (`in_proj_weight`,
    `in_proj_bias`, `out_proj.weight`, `out_proj.bias`), and those of the encoding and the
    gain after `encoding.` and `gain.`. i and j are places: with a cache those in the whole
    sequence, with a context i + offset and j.

    Where b and c depend on i - j alone and not all weights are wanted,
    `toeplitz_attention` runs, in O(n) memory; with DeBERTa, neither causal nor with a gain,
    `disentangled_attention`; without b and c, PyTorch's own attention, whose gradients on a
    GPU may differ in the last bits; with a b or c of each pair, without r and on a GPU or
    with many weights, `pairwise_attention`; elsewhere plain torch.

    Args:
        embed_dim: Size of a token.
        num_heads: Number of heads; a head has embed_dim / num_heads coordinates.
        kv_heads: Number of heads of keys and values, each for num_heads / kv_heads heads of
            queries; None for num_heads, 1 for keys and values that all heads share.
        encoding: An encoding, its name ("none", "t5", "t5-buckets", "alibi", "rotary",
            "shaw", "shaw-values", "deberta", "xl"), or None. The same object may be given
            to several layers.
        gain: A gain; True for a `ToeplitzGain` of this layer alone; None or False for none.
            The same object may be given to several layers, as Luo et al. do.
        max_len: Longest sequence of tables that the layer makes itself.
        clamp: Whether these tables clip the offsets of longer sequences.
        bias: Whether queries, keys, values and the output have biases.
        dropout: Probability of dropping a weight in training, after the gain.
        causal: Whether a token sees only itself and earlier ones.
        scale: Of q . k; by default 1 / sqrt(d_head), and 1 / sqrt(3 d_head) with DeBERTa.
        implementation: "auto", or "reference" for plain torch always.
        device: As in torch.
        dtype: As in torch.

    Raises:
        InputError: If the sizes do not fit; all reasons at once.

    Example:
        >>> layer = RelativeAttention(8, 2, encoding="t5", gain=True, max_len=16)
        >>> layer(torch.ones(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kv_heads: int | None = None,
        encoding: Encoding | str | None = None,
        gain: Gain | bool | None = None,
        max_len: int = 512,
        clamp: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        scale: float | None = None,
        implementation: Implementation = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_settings(self, embed_dim, num_heads, kv_heads, dropout, implementation)
        check_positive(max_len=max_len)
        if isinstance(encoding, str):
            encoding = encoding_by_name(
                encoding, embed_dim=embed_dim, num_heads=num_heads, max_len=max_len,
                clamp=clamp, causal=causal, device=device, dtype=dtype,
            )  # fmt: skip
        if isinstance(gain, bool):
            made = ToeplitzGain(num_heads, max_len, clamp=clamp, device=device, dtype=dtype)
            gain = made if gain else None
        head_dim = embed_dim // num_heads
        _check_parts(encoding, gain, num_heads, head_dim)
        terms = 1 if encoding is None else encoding.terms
        super().__init__(
            embed_dim,
            num_heads,
            kv_heads=kv_heads,
            bias=bias,
            dropout=dropout,
            scale=1 / math.sqrt(terms * head_dim) if scale is None else scale,
            implementation=implementation,
            device=device,
            dtype=dtype,
        )
        self.causal = causal
        self.encoding = encoding
        self.gain = gain

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        context: Float[Tensor, "*batch n_k d"] | None = None,
        offset: int | None = None,
        cache: KeyCache | None = None,
        key_padding_mask: Bool[Tensor, "*batch n_k"] | None = None,
        attn_mask: Tensor | None = None,
        graph: Graph | None = None,
        need_weights: bool | slice | Tensor = False,
    ) -> Float[Tensor, "*batch n d"] | tuple[Tensor, Float[Tensor, "*batch h rows keys"]]:
        """Attend from every token to every token, or to those of a context.

        Args:
            x: Tokens.
            context: Tokens to attend to instead of x, for layers that are not causal.
            offset: Place of the first token of x, where the first of the context stands at
                0; for encodings and gains by i - j, which mean nothing without.
            cache: Of this layer, which must be causal: x follows the tokens that it holds.
                With a context, holds the keys of that.
            key_padding_mask: True for tokens of x, or of the context, that nobody sees, as
                in `torch.nn.MultiheadAttention`. A token that sees nobody gets only the
                bias of the output.
            attn_mask: Of a shape that broadcasts to (*batch, heads, queries, keys): True
                where a pair counts, as in `scaled_dot_product_attention` (and not as in
                `torch.nn.MultiheadAttention`); or numbers that are added to the logits,
                of which those up to -1e30 hide their pair.
            graph: Distances of the tokens, for encodings and gains on graphs.
            need_weights: Whether to return the weights a_ij of all heads too; a slice, or
                numbers in a tensor, for those of some queries i alone.

        Returns:
            The outputs, and with `need_weights` the pair of outputs and weights.

        Raises:
            InputError: If shapes or dtypes do not fit, or what is asked for has no meaning.
        """
        check_cache(cache)
        self._check_call(context, offset, cache)
        heads = self._project(
            x, key_padding_mask, attn_mask, context=context, offset=offset, cache=cache
        )
        rows = chosen_rows(need_weights, x.shape[-2])
        terms = None if need_weights is True else self._bucket_terms(heads)
        fast = terms is not None or self._runs_fast(heads)
        if fast and self._drops():
            heads = heads._replace(seed=torch.randint(2**63 - 1, (1,), device=x.device))
        weights = None
        if need_weights is False and not fast and self._takes_pairs(heads):
            mixed = self._by_pairs(heads, graph)
        elif need_weights is True or not fast:
            weights = self._weights(heads, graph)
            mixed = self._mixed(weights, heads)
            if rows is not None:
                weights = weights[:, :, rows]
        else:
            mixed = self._fast(heads, terms)
            if rows is not None:
                weights = self._some_weights(heads, rows)
        if cache is not None:
            cache.keep()
        return self._output(mixed, None if need_weights is False else weights, x)

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What layer(x) can do, whatever its numbers; feed-forward layers alike.

        With kv_heads < num_heads: what kv_heads heads can, one of each group, the others
        switched off by the output. Nothing that holds for all weights depends on that.

        Args:
            seq_len: The length in question; by default, one that the gain tells all
                offsets apart for, if there is one.
        """
        encoding = self.encoding
        name = "none" if encoding is None else encoding.name
        if self.gain is not None:
            name = "urpe" if encoding is None else f"{name}+urpe"
        places = {part.relative_to for part in (encoding, self.gain) if part is not None}
        has_bias = self.in_proj_bias is not None
        rows = None
        if isinstance(self.gain, HeadGain):
            rows = 1  # whatever the length
        elif self.gain is not None and seq_len is not None:
            rows = self.gain.different_rows(seq_len, causal=self.causal)
            rows = None if rows == seq_len else rows
        return AttentionSpec(
            name=name,
            bias=encoding is not None,
            gain=self.gain is not None,
            value_term=encoding is not None and encoding.has_values,
            causal=self.causal,
            query_bias=has_bias or (encoding is not None and encoding.query_bias),
            value_bias=has_bias or getattr(self.out_proj, "bias", None) is not None,
            feed_forward_bias=has_bias,
            fixed_bias=encoding is not None and encoding.fixed,
            rotary=encoding is not None and encoding.rotates,
            num_heads=self.kv_heads,
            relative_to="graph" if "graph" in places else "offset",
            content=_has_inverse(self.scale),
            gain_rows=rows,
        )

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{self.embed_dim}, {self.num_heads}, kv_heads={self.kv_heads}, "
            f"dropout={self.dropout}, "
            f"causal={self.causal}, implementation={self.implementation!r}"
        )

    def _place(
        self, q: Tensor, k: Tensor, first_query: int, first_key: int
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated by their places where the encoding says so."""
        if self.encoding is None:
            return q, k
        return self.encoding.rotate(q, k, first_query, first_key)

    def _is_plain(self, heads: Heads) -> bool:
        """Whether nothing is added or multiplied, so that PyTorch's kernels do the work."""
        changed = self.encoding is not None or self.gain is not None or self._drops()
        hidden = heads.padding is not None or heads.mask is not None
        return not (changed or hidden) and self._sees(heads) is not None

    def _sees(self, heads: Heads) -> bool | None:
        """Whether query i sees the keys j <= i; False for all keys, None for others."""
        if not self.causal or heads.offset + 1 >= heads.k.shape[-2]:
            return False
        return True if heads.offset == 0 else None

    def _runs_fast(self, heads: Heads) -> bool:
        """Whether an operator by offset computes the same, and can on this device."""
        if self.implementation == "reference":
            return False
        if self._is_plain(heads):
            return True
        encoding = self.encoding
        if encoding is not None and (encoding.pairwise or encoding.has_values):
            return False
        if self.gain is not None and not isinstance(self.gain, ToeplitzGain):
            return False
        return operator_takes(heads.q)

    def _bucket_terms(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor] | None:
        """The terms of DeBERTa, if the operator that takes them computes the same."""
        q, k, whole = heads.q, heads.k, heads.offset == 0
        if self.implementation == "reference" or heads.mask is not None:
            return None
        if self.encoding is None or self.gain is not None or self.causal:
            return None
        if not (
            whole and q.shape[-2] == k.shape[-2] and operator_takes(q, MAX_BUCKETS_HEAD)
        ):
            return None
        return self.encoding.bucket_terms(q, for_all_heads(k, self.num_heads))

    def _fast(
        self, heads: Heads, terms: tuple[Tensor, Tensor, Tensor] | None
    ) -> Float[Tensor, "b h n d"]:
        """The outputs of all heads, without their weights."""
        q, k, v, padding, mask, offset, seed, _ = heads
        n_q, n_k = q.shape[-2], k.shape[-2]
        dropout = 0.0 if seed is None else self.dropout
        if terms is not None:
            k, v = (for_all_heads(x, self.num_heads) for x in (k, v))
            return disentangled_attention(
                q, k, v, *terms, scale=self.scale, key_padding=padding, dropout=dropout,
                seed=seed,
            )  # fmt: skip
        if self._is_plain(heads):
            return nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=bool(self._sees(heads)), scale=self.scale,
                enable_gqa=self.kv_heads != self.num_heads,
            )  # fmt: skip
        encoding, gain = self.encoding, self.gain
        return toeplitz_attention(
            q, k, v,
            None if encoding is None else encoding.offset_bias(q, n_k, offset),
            None if gain is None else gain.offset_gain(n_q, n_k, offset),
            causal=self.causal, scale=self.scale, key_padding=padding,
            offset=offset if self.causal else 0, attn_mask=mask,
            dropout=dropout, seed=seed,
        )  # fmt: skip

    def _takes_pairs(self, heads: Heads) -> bool:
        """Whether the operator with B and C of each pair computes the same, and helps."""
        values = self.encoding is not None and self.encoding.has_values
        shifted = self.causal and heads.offset != 0
        if self.implementation == "reference" or values or shifted:
            return False
        large = heads.q.is_cuda
        if not (large or torch.compiler.is_compiling()):  # there, sizes stay symbols
            large = heads.q.shape[:-1].numel() * heads.k.shape[-2] > FEW_WEIGHTS
        return heads.mask is None and large and operator_takes(heads.q)

    def _by_pairs(self, heads: Heads, graph: Graph | None) -> Float[Tensor, "b h n d"]:
        """The outputs of all heads, without their weights, from B and C of all pairs."""
        k, v = (for_all_heads(x, self.num_heads) for x in (heads.k, heads.v))
        n_q, n_k, gain = heads.q.shape[-2], k.shape[-2], self.gain
        return pairwise_attention(
            heads.q, k, v, self._pair_bias(heads.q, k, heads.offset, graph),
            None if gain is None else gain.matrix(n_q, n_k, graph, heads.offset),
            causal=self.causal, scale=self.scale, key_padding=heads.padding,
            dropout=self.dropout if self._drops() else 0.0,
        )  # fmt: skip

    def _pair_bias(
        self, q: Tensor, k: Tensor, offset: int, graph: Graph | None
    ) -> Float[Tensor, "b_or_1 h_or_1 n_q n_k"] | None:
        """B, in float32 at least: by offset, by pair, or the sum of both."""
        if self.encoding is None:
            return None
        n_q, n_k = q.shape[-2], k.shape[-2]
        dtype = torch.promote_types(q.dtype, torch.float32)
        vector = self.encoding.offset_bias(q, n_k, offset)
        pairs = self.encoding.pair_bias(q.to(dtype), k.to(dtype), self.scale, graph, offset)
        pairs = None if pairs is None else pairs.to(dtype)
        if vector is None:
            return pairs
        rows = vector.to(dtype)[:, None].expand(-1, n_q, -1)
        by_offset = spread_offsets(rows, n_k)[None]
        return by_offset if pairs is None else by_offset + pairs

    def _some_weights(self, heads: Heads, rows: list[int]) -> Float[Tensor, "b h rows n_k"]:
        """The weights of some queries, in plain torch."""
        found = [self._weights(heads.of_queries(some), None) for some in runs(rows)]
        if not found:
            return heads.q.new_empty(*heads.q.shape[:2], 0, heads.k.shape[2])
        return torch.cat(found, 2)

    def _weights(self, heads: Heads, graph: Graph | None) -> Float[Tensor, "b h n_q n_k"]:
        """All weights, in plain torch."""
        q, k, offset = heads.q, for_all_heads(heads.k, self.num_heads), heads.offset
        n_q, n_k = q.shape[-2], k.shape[-2]
        logits = scores(q, k, self.scale)
        bias = self._pair_bias(q, k, offset, graph)
        if bias is not None:
            logits = logits + bias
        hidden = hidden_pairs(
            n_q, n_k, causal=self.causal, key_padding=heads.padding, device=q.device,
            offset=offset,
        )  # fmt: skip
        logits, hidden = masked_logits(logits, hidden, heads.mask)
        gain = self.gain
        found = attention_weights(
            logits,
            hidden,
            None if gain is None else gain.matrix(n_q, n_k, graph, offset),
            dtype=q.dtype,
            dropout=self.dropout if self._drops() and heads.seed is None else 0.0,
        )
        if heads.seed is None:
            return found
        first = heads.first
        return found * kept_pairs(found, heads.seed, self.dropout, first_query=first)

    def _mixed(self, weights: Tensor, heads: Heads) -> Float[Tensor, "b h n_q d"]:
        """sum_j a_ij (v_j + r_ij)."""
        v = for_all_heads(heads.v, self.num_heads)
        mixed = weights @ v
        if self.encoding is not None:
            n_q, n_k = weights.shape[-2:]
            vectors = self.encoding.offset_values(n_q, n_k, heads.offset)
            if vectors is not None:
                mixed = mixed + collect_offsets(weights) @ vectors.to(v.dtype)
        return mixed

    def _check_call(
        self, context: Tensor | None, offset: int | None, cache: KeyCache | None
    ) -> None:
        """Refuse a context or a cache that have no meaning for this layer."""
        parts = [part for part in (self.encoding, self.gain) if part is not None]
        names = ", ".join(type(part).__name__ for part in parts)
        wrong: list[str] = []
        if (context is not None or cache is not None) and any(p.whole for p in parts):
            wrong.append(
                f"{names} is about all tokens at once, so there can be neither a context "
                "nor a cache"
            )
        if context is not None and self.causal:
            wrong.append(
                "the layer is causal, but no token of a context is later than one of x; "
                "make it with causal=False, or hide pairs with attn_mask"
            )
        by_place = any(not isinstance(part, HeadGain) for part in parts)
        if context is not None and offset is None and by_place:
            wrong.append(
                f"{names} looks at i - j, which has no meaning between a sequence and its "
                "context; give offset=, the place of x_0 where that of the first token of "
                "the context is 0, or use a layer without"
            )
        if cache is not None and context is None and not self.causal:
            wrong.append(
                "the layer is not causal: with later tokens, earlier outputs would change; "
                "make it with causal=True"
            )
        refuse("RelativeAttention cannot run", wrong)


def _has_inverse(scale: float) -> bool:
    """Whether W_Q = u / scale is a matrix of numbers."""
    return math.isfinite(scale) and scale != 0.0 and math.isfinite(1 / scale)


def _check_parts(encoding: object, gain: object, num_heads: int, head_dim: int) -> None:
    if encoding is not None and not isinstance(encoding, Encoding):
        msg = (
            f"encoding={encoding!r} is not an encoding. Pass one of everyformer.layers, "
            "its name, or None."
        )
        raise InputError(msg)
    if gain is not None and not isinstance(gain, Gain):
        msg = f"gain={gain!r} is not a gain. Pass one of everyformer.layers, True or None."
        raise InputError(msg)
    if encoding is not None:
        encoding.check_layer(num_heads, head_dim)
    if gain is not None and gain.num_heads not in (1, num_heads):
        msg = (
            f"The gain has {gain.num_heads} heads, the layer {num_heads}. Give "
            "both the same number, or the gain 1 for all heads."
        )
        raise InputError(msg)
