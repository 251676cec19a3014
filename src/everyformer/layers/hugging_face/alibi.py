"""BLOOM, MPT and Falcon: ALiBi as a vector by offset, where it is one.

BLOOM adds slope (c_j - 1) to the logits of key j, where c_j counts the keys up to j that
are not padded. Let those of a sequence be in one piece, s, .., e. For each of them c_j - 1
= j - s, and

    slope (j - s) = -slope (i - j) + slope (i - s).

The second term is the same for all keys of query i. The softmax over these keys does not
change when it is left out, and the other keys have weight 0: so b_{i-j} = -slope (i - j).
Padding on either side leaves the keys in one piece. With holes, c_j stays what it is: a
number for each key (`masks` tells the two apart).

MPT adds slope (j - (n_k - 1)) = -slope (i - j) + slope (i - (n_k - 1)), for all masks.
Falcon rounds its slopes times (c_j - 1) to bfloat16, so they are not linear in j: always a
number for each key.

In half precision BLOOM rounds slope (c_j - 1) to its 8 or 11 bits before adding it. Here
the bias is float32: nearer to the model in float32.
"""

import math
import sys
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.encodings.alibi import alibi_slopes
from everyformer.layers.hugging_face.function import everyformer_attention
from everyformer.layers.hugging_face.swapping import Swapped, original


def by_offset(slopes: Tensor, n_q: int, n_k: int) -> Tensor:
    """-slope k for k = i - j from -(n_k - 1) to n_q - 1."""
    offsets = torch.arange(1 - n_k, n_q, device=slopes.device, dtype=slopes.dtype)
    return -slopes[:, None] * offsets


def _keys(mask: Tensor | None, n_k: int) -> int:
    """How many of the keys a mask speaks of."""
    return n_k if mask is None or mask.dim() == 4 else mask.shape[-1]


def _module_of(module: nn.Module) -> Any:
    """The file of transformers that defines a module."""
    return sys.modules[original(module).__module__]


class Bloom(Swapped):
    """Goes before `BloomAttention`."""

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the original; the weights are None unless they are asked for."""
        this: Any = self
        query, key, value = this._reshape(this.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, this.layer_idx)
        n_q, n_k, h = query.shape[-2], key.shape[-2], this.num_heads
        bias = key_bias = None
        if attention_mask is not None and attention_mask.dim() > 2:
            key_bias = alibi.reshape(-1, h, alibi.shape[-1])
        else:
            dtype = torch.promote_types(query.dtype, torch.float32)
            slopes = torch.tensor(alibi_slopes(h), dtype=dtype, device=query.device)
            bias = by_offset(slopes, n_q, n_k)
        out, weights = everyformer_attention(
            self, query, key, value, attention_mask, is_causal=True,
            scaling=this.inv_norm_factor, position_bias=bias, key_bias=key_bias,
            dropout=this.attention_dropout.p if self.training else 0.0,
            output_attentions=output_attentions,
        )  # fmt: skip
        out = this.dense(out.flatten(-2))
        dropped = nn.functional.dropout(out, this.hidden_dropout, self.training)
        return residual + dropped, weights


class Mpt(Swapped):
    """Goes before `MptAttention`."""

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the original; the weights are None unless they are asked for."""
        this: Any = self
        mixed = this.Wqkv(hidden_states)
        if this.clip_qkv:
            mixed = mixed.clamp(min=-this.clip_qkv, max=this.clip_qkv)
        query, key, value = (
            x.unflatten(-1, (this.n_heads, this.head_dim)).transpose(1, 2)
            for x in mixed.chunk(3, dim=2)
        )
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, this.layer_idx)
        n_q, n_k = query.shape[-2], key.shape[-2]
        longest = position_bias.shape[-1]
        if _keys(attention_mask, n_k) > longest:
            msg = (
                f"{_keys(attention_mask, n_k)} tokens exceed max_seq_len={longest} of this "
                "model. Shorten the sequence, or set config.max_seq_len."
            )
            raise InputError(msg)
        slopes = position_bias[:, 0, -1] - position_bias[:, 0, -2]
        out, weights = everyformer_attention(
            self, query, key, value, _seen(attention_mask), is_causal=True,
            scaling=this.softmax_scale, position_bias=by_offset(slopes, n_q, n_k),
            dropout=this.attn_dropout_p if self.training else 0.0,
        )  # fmt: skip
        return this.out_proj(out.flatten(-2)), weights


def _seen(mask: Tensor | None) -> Tensor | None:
    """MPT hides where a mask of all pairs is true; our function shows there."""
    return ~mask if mask is not None and mask.dim() == 4 else mask


class Falcon(Swapped):
    """Goes before `FalconAttention`, with ALiBi or with rotations."""

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the original; the weights are None unless they are asked for."""
        this: Any = self
        parts = _falcon_heads(this, this.query_key_value(hidden_states))
        query, key, value = (x.transpose(1, 2) for x in parts)
        if alibi is None:
            rotate = _module_of(self).apply_rotary_pos_emb
            query, key = rotate(query, key, *(position_embeddings or ()))
        if layer_past is not None:
            key, value = layer_past.update(key, value, this.layer_idx)
        key_bias = None
        if alibi is not None and (attention_mask is None or attention_mask.dim() < 4):
            # With four axes the model has put ALiBi into the mask already.
            each = alibi.reshape(-1, this.num_heads, alibi.shape[-1])
            key_bias = each / math.sqrt(this.head_dim)
        drops = self.training and alibi is not None
        out, weights = everyformer_attention(
            self, query, key, value, attention_mask, is_causal=True, key_bias=key_bias,
            dropout=this.attention_dropout.p if drops else 0.0,
            output_attentions=output_attentions,
        )  # fmt: skip
        return this.dense(out.flatten(-2)), weights


def _falcon_heads(module: Any, mixed: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values as the original splits them, (b, n, heads, d).

    That names places by lists, which would go to the GPU in every call, and which no CUDA
    graph takes.
    """
    n, d = module.num_heads, module.head_dim
    if module.new_decoder_architecture:
        groups = mixed.unflatten(-1, (-1, n // module.num_kv_heads + 2, d))
        query = groups[..., :-2, :]
        key, value = (groups[..., x, None, :].expand_as(query) for x in (-2, -1))
        return query.flatten(2, 3), key.flatten(2, 3), value.flatten(2, 3)
    if module.multi_query:
        each = mixed.unflatten(-1, (n + 2, d))
        return each[..., :-2, :], each[..., -2, None, :], each[..., -1, None, :]
    return mixed.unflatten(-1, (n, 3, d)).unbind(-2)


def bloom_why_not(module: nn.Module) -> str | None:
    """What stands against it: weights in slices, which are added up in another order."""
    this: Any = module
    if not hasattr(this, "_reshape") or not hasattr(this, "inv_norm_factor"):
        return "this release of transformers splits its heads elsewhere; use 5.22 or later"
    if this.pretraining_tp > 1 and this.slow_but_exact:
        return "slow_but_exact with pretraining_tp > 1 is not known here"
    return None


def mpt_why_not(module: nn.Module) -> str | None:
    """What stands against it: a release with another cache."""
    wanted = ("Wqkv", "n_heads", "softmax_scale", "attn_dropout_p", "layer_idx")
    if all(hasattr(module, name) for name in wanted):
        return None
    return "this release of transformers keeps its keys elsewhere; use 5.22 or later"


def falcon_why_not(module: nn.Module) -> str | None:
    """What stands against it: the class of flash attention, which takes no ALiBi."""
    if not hasattr(_module_of(module), "apply_rotary_pos_emb"):
        return "this release of transformers rotates elsewhere; use 5.22 or later"
    splits = getattr(type(module), "_split_heads", None)
    there = getattr(splits, "__module__", None) == type(module).__module__
    if "_split_heads" in vars(module) or not there:
        return "its _split_heads was replaced; restore it"
    return None
