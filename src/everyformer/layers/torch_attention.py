"""`torch.nn.MultiheadAttention` with a gain where its weights meet the values."""

from collections.abc import Collection, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.gains import GAIN
from everyformer.layers.weights import attention_weights, operator_takes, scores
from everyformer.ops import toeplitz_attention
from everyformer.ops.eager import is_plain, is_transformed


class GainedMultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` for self-attention, its weights times c_{i-j}.

    An object becomes one by `attach`; it is never made by itself. A query that sees no key
    gets weights 0, where `torch.nn.MultiheadAttention` may give NaN.
    """

    urpe: tuple[nn.Module]
    """Who owns the gain, in a tuple, so that it is not listed as a part of this one.

    The gain is asked for in each call, so that one that is put in its place is used.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in the base class; query and key must be one tensor."""
        one = _are_one(query, key)
        if query.is_nested or not one or key.shape != value.shape:
            same = "one tensor" if one else "two tensors"
            msg = (
                f"query, key, value have shapes {tuple(query.shape)}, {tuple(key.shape)}, "
                f"{tuple(value.shape)}, query and key are {same}; but an offset i - j has "
                "a meaning in self-attention only, where query and key are one. Give "
                "add_urpe the name of this module in leave=(..) if it is cross-attention."
            )
            raise InputError(msg)
        lone, axis = query.dim() == 2, 0 if self.batch_first else 1
        if lone:
            query, key, value = (x.unsqueeze(axis) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._heads(query, key, value)
        out, weights = self._attend(
            q, k, v, key_padding_mask, need_weights, attn_mask, is_causal
        )
        out = self.out_proj(out.transpose(1, 2).flatten(-2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        out = out if self.batch_first else out.transpose(0, 1)
        if lone:
            return out.squeeze(axis), None if weights is None else weights[0]
        return out, weights

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values as [b, h, n, d]."""
        packed = getattr(self, "in_proj_bias", None)  # None without bias
        biases = [None] * 3 if packed is None else packed.chunk(3)
        return [
            nn.functional.linear(x, weight, bias)
            .unflatten(-1, (self.num_heads, self.head_dim))
            .transpose(1, 2)
            for x, weight, bias in zip(
                (query, key, value), self.in_proj_weight.chunk(3), biases, strict=True
            )
        ]

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        n, gain = q.shape[-2], getattr(self.urpe[0], GAIN)
        dropout = self.dropout if self.training else 0.0
        scale = self.head_dim**-0.5
        # The hint stands for the mask exactly where the base class takes it so.
        hinted = is_causal and key_padding_mask is None and not need_weights
        masked = attn_mask is not None and not hinted
        padding_is_bool = key_padding_mask is None or key_padding_mask.dtype == torch.bool
        special = need_weights or masked or dropout > 0.0 or not padding_is_bool
        if operator_takes(q) and not special:
            out = toeplitz_attention(
                q, k, v, gain=gain.offset_gain(n), causal=hinted, scale=scale,
                key_padding=key_padding_mask,
            )  # fmt: skip
            return out, None
        logits = scores(q, k, scale)
        mask = logits.new_zeros(1, 1, n, n)
        if hinted:
            future = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            mask = mask.masked_fill(future, -torch.inf)
        elif attn_mask is not None:
            heads = (
                attn_mask if attn_mask.dim() == 2 else attn_mask.view(-1, *logits.shape[1:])
            )
            mask = mask + _additive(heads, mask)
        if key_padding_mask is not None:
            mask = mask + _additive(key_padding_mask, mask)[:, None, None, :]
        hidden = mask == -torch.inf
        logits = logits + mask.masked_fill(hidden, 0.0)
        weights = attention_weights(
            logits, hidden, gain.matrix(n), dtype=q.dtype, dropout=dropout
        )
        return weights @ v, weights if need_weights else None


def _are_one(query: Tensor, key: Tensor) -> bool:
    """Whether they are the same numbers in the same memory; else it is cross-attention."""
    if query is key or not is_plain(query, key) or is_transformed():
        return query is key
    alike = (query.shape, query.stride()) == (key.shape, key.stride())
    return alike and query.data_ptr() == key.data_ptr()


def _additive(mask: Tensor, like: Tensor) -> Float[Tensor, "..."]:
    """A mask of bools (True hides) or of numbers as numbers to add."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)


CROSS = ("cross", "encdec", "enc_dec", "encoder_attn", "multihead_attn", "src_attn")
"""A module with one of these in its own name is cross-attention."""


def attention_modules(
    model: nn.Module, leave: Collection[str] = ()
) -> Iterator[tuple[nn.Module, nn.MultiheadAttention]]:
    """Each self-attention of a model, with the stack that owns its gain when shared.

    Left out are the cross-attention of decoder layers, what is called so, and what the
    caller names.
    """
    cross = {
        id(layer.multihead_attn)
        for layer in model.modules()
        if isinstance(layer, nn.TransformerDecoderLayer)
    }
    owners: dict[int, nn.Module] = {}
    for stack in model.modules():
        if isinstance(stack, nn.TransformerEncoder | nn.TransformerDecoder):
            owners |= {id(part): stack for part in stack.modules()}
    for name, module in model.named_modules():
        own = name.rpartition(".")[2].lower()
        called_so = name in leave or any(word in own for word in CROSS)
        if not isinstance(module, nn.MultiheadAttention) or called_so:
            continue
        if id(module) not in cross:
            yield owners.get(id(module), model), module


def why_not(module: nn.MultiheadAttention) -> str | None:
    """What stands against a gain on this module."""
    if type(module) is not nn.MultiheadAttention:
        return (
            f"it is a {type(module).__name__}, a subclass that may compute something else"
        )
    if module.bias_k is not None or module.add_zero_attn:
        return "add_bias_kv and add_zero_attn add keys that have no place in the sequence"
    if module.kdim != module.embed_dim or module.vdim != module.embed_dim:
        return "kdim or vdim differ from embed_dim, as in cross-attention"
    return None


def attach(model: nn.Module, module: nn.MultiheadAttention, home: nn.Module) -> None:
    """Let the module use the gain of `home`, and keep torch from paths without gains."""
    module.__class__ = GainedMultiheadAttention
    object.__setattr__(module, "urpe", (home,))
    # Encoder layers fuse the whole layer, past their attention, where this is true.
    module._qkv_same_embed_dim = False  # pyright: ignore[reportPrivateUsage]
    for stack in model.modules():
        if isinstance(stack, nn.TransformerEncoder):
            stack.use_nested_tensor = False
