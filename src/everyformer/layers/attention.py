"""Self-attention with any encoding of relative positions, and with URPE on top of it."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.encodings import Encoding, encoding_by_name
from everyformer.layers.gains import Gain, HeadGain, ToeplitzGain
from everyformer.layers.graph import Graph
from everyformer.layers.offsets import check_positive, collect_offsets, spread_offsets
from everyformer.layers.self_attention import (
    Implementation,
    SelfAttention,
    check_settings,
)
from everyformer.layers.weights import (
    attention_weights,
    hidden_pairs,
    operator_takes,
    scores,
)
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself
from everyformer.ops import disentangled_attention, toeplitz_attention
from everyformer.papers import LUO2022, implements


@describes_itself(out_proj=nn.Linear, encoding=Encoding, gain=Gain)
@implements(LUO2022, "Equation 8")
class RelativeAttention(SelfAttention):
    """Multi-head self-attention, tokens as rows.

        a_ij = dropout(c_ij softmax_j(scale q_i . k_j + b_ij))
        o_i = sum_j a_ij (v_j + r_ij)

    b and r come from `encoding`, c from `gain`; without them b = r = 0 and c = 1. The names
    in the state dict are those of `torch.nn.MultiheadAttention` (`in_proj_weight`,
    `in_proj_bias`, `out_proj.weight`, `out_proj.bias`), and those of the encoding and the
    gain after `encoding.` and `gain.`.

    Where b and c depend on i - j alone and neither dropout nor the weights are wanted,
    `toeplitz_attention` runs, in O(n) memory; with DeBERTa, neither causal nor with a gain,
    `disentangled_attention`; without b and c, PyTorch's own attention, whose gradients on a
    GPU may differ in the last bits; elsewhere plain torch.

    Args:
        embed_dim: Size of a token.
        num_heads: Number of heads; a head has embed_dim / num_heads coordinates.
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
        check_settings(self, embed_dim, num_heads, dropout, implementation)
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
        key_padding_mask: Bool[Tensor, "*batch n"] | None = None,
        graph: Graph | None = None,
        need_weights: bool = False,
    ) -> Float[Tensor, "*batch n d"] | tuple[Tensor, Float[Tensor, "*batch h n n"]]:
        """Attend from every token to every token.

        Args:
            x: Tokens.
            key_padding_mask: True for tokens that nobody sees, as in
                `torch.nn.MultiheadAttention`. A token that sees nobody gets only the bias
                of the output.
            graph: Distances of the tokens, for encodings and gains on graphs.
            need_weights: Whether to return the weights a_ij of all heads too.

        Returns:
            The outputs, and with `need_weights` the pair of outputs and weights.

        Raises:
            InputError: If shapes or dtypes do not fit.
        """
        q, k, v, padding = self._project(x, key_padding_mask)
        if self.encoding is not None:
            q, k = self.encoding.rotate(q, k)
        weights = None
        terms = self._bucket_terms(q, k, need_weights)
        if terms is not None:
            mixed = disentangled_attention(
                q, k, v, *terms, scale=self.scale, key_padding=padding
            )
        elif self._is_plain(need_weights, padding):
            mixed = nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, scale=self.scale
            )
        elif self._runs_fast(q, need_weights):
            mixed = toeplitz_attention(
                q, k, v,
                None if self.encoding is None else self.encoding.offset_bias(q),
                None if self.gain is None else self.gain.offset_gain(x.shape[-2]),
                causal=self.causal, scale=self.scale, key_padding=padding,
            )  # fmt: skip
        else:
            weights = self._weights(q, k, padding, graph)
            mixed = self._mixed(weights, v)
        return self._output(mixed, weights if need_weights else None, x)

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What this layer can do, whatever its numbers; feed-forward layers alike.

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
            num_heads=self.num_heads,
            relative_to="graph" if "graph" in places else "offset",
            content=_has_inverse(self.scale),
            gain_rows=rows,
        )

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, "
            f"causal={self.causal}, implementation={self.implementation!r}"
        )

    def _is_plain(self, need_weights: bool, padding: Tensor | None) -> bool:
        """Whether nothing is added or multiplied, so that PyTorch's kernels do the work."""
        changed = self.encoding is not None or self.gain is not None or padding is not None
        return self.implementation == "auto" and not (
            changed or self._drops() or need_weights
        )

    def _runs_fast(self, q: Tensor, need_weights: bool) -> bool:
        """Whether the operator computes the same, and can on this device."""
        if need_weights or self.implementation == "reference" or self._drops():
            return False
        encoding = self.encoding
        if encoding is not None and (encoding.pairwise or encoding.has_values):
            return False
        if self.gain is not None and not isinstance(self.gain, ToeplitzGain):
            return False
        return operator_takes(q)

    def _bucket_terms(
        self, q: Tensor, k: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """The terms of DeBERTa, if the operator that takes them computes the same."""
        if need_weights or self.implementation == "reference" or self._drops():
            return None
        if self.encoding is None or self.gain is not None or self.causal:
            return None
        return self.encoding.bucket_terms(q, k) if operator_takes(q) else None

    def _weights(
        self, q: Tensor, k: Tensor, padding: Tensor | None, graph: Graph | None
    ) -> Float[Tensor, "b h n n"]:
        """All weights, in plain torch."""
        n = q.shape[-2]
        logits = scores(q, k, self.scale)
        if self.encoding is not None:
            vector = self.encoding.offset_bias(q)
            if vector is not None:
                bias = vector.to(logits.dtype)[:, None].expand(-1, n, -1)
                logits = logits + spread_offsets(bias, n)
            wide_q, wide_k = q.to(logits.dtype), k.to(logits.dtype)
            pairs = self.encoding.pair_bias(wide_q, wide_k, self.scale, graph)
            if pairs is not None:
                logits = logits + pairs.to(logits.dtype)
        hidden = hidden_pairs(
            n, n, causal=self.causal, key_padding=padding, device=q.device
        )
        return attention_weights(
            logits,
            hidden,
            None if self.gain is None else self.gain.matrix(n, graph=graph),
            dtype=q.dtype,
            dropout=self.dropout if self.training else 0.0,
        )

    def _mixed(self, weights: Tensor, v: Tensor) -> Float[Tensor, "b h n d"]:
        """sum_j a_ij (v_j + r_ij)."""
        mixed = weights @ v
        if self.encoding is not None:
            vectors = self.encoding.offset_values(v.shape[-2])
            if vectors is not None:
                mixed = mixed + collect_offsets(weights) @ vectors.to(v.dtype)
        return mixed


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
