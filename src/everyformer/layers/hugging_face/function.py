"""The attention function that models of transformers call, and its entry in the registry.

`register` enters it under `NAME` and `GAINED`; both are one function. A gain is read from
the module that calls it.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.gains import GAIN
from everyformer.layers.hugging_face import wanted_weights
from everyformer.layers.hugging_face.attend import Call, attend
from everyformer.layers.hugging_face.masks import key_mask

NAME = "everyformer"
"""What `attn_implementation` is called for models without gains."""

GAINED = "everyformer_urpe"
"""For models with gains: where everyformer is not known, their files do not load."""

REFUSED = ("softcap", "s_aux", "head_mask", "cache")
"""Keywords with which other models ask for something else."""


def enter() -> None:
    """Enter our functions in the registries of transformers."""
    library = import_module("transformers")
    masking = import_module("transformers.masking_utils")
    for name in (NAME, GAINED):
        library.AttentionInterface.register(name, everyformer_attention)
        masking.AttentionMaskInterface.register(name, key_mask)


def is_ours(config: Any) -> bool:
    """Whether a configuration asks for our function."""
    return getattr(config, "_attn_implementation", None) in (NAME, GAINED)


def everyformer_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    key_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it, times the gain of the module if it has one.

    Args:
        module: Who calls.
        query: (b, h, n_q, d).
        key: (b, h_k, n_k, d).
        value: (b, h_k, n_k, d).
        attention_mask: As `masks` tells; four axes also as numbers to add.
        dropout: Probability with which a weight is dropped.
        scaling: Of the scores; 1 / sqrt(d) by default.
        is_causal: What the module says, by default.
        position_bias: By offset, (h, n_q + n_k - 1), or for all pairs, (.., n_q, n_k).
        key_bias: Added for each key, (b or 1, h, n_k).
        kwargs: `output_attentions`; others say nothing here.

    Returns:
        The output, (b, n_q, h, d), and the weights if they are wanted.
    """
    asked = [name for name in REFUSED if kwargs.get(name) is not None]
    if asked:
        msg = (
            f"{type(module).__name__} asks for {', '.join(asked)}, which is not known here"
        )
        raise InputError(f"{msg}. Use attn_implementation='eager'.")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    seen = mask = sequences = None
    if attention_mask is not None and attention_mask.dim() == 4:
        mask, causal = attention_mask, False
    elif attention_mask is not None and attention_mask.dim() == 1:
        sequences, causal = attention_mask, True
    elif attention_mask is not None:
        seen = attention_mask[:, 0] if attention_mask.dim() == 3 else attention_mask
        key, value, position_bias = _up_to(seen, causal, query, key, value, position_bias)
        if key_bias is not None:
            key_bias = key_bias[..., : key.shape[-2]]
        if seen.stride() == (0, 0):  # all keys are seen
            seen = None
    if position_bias is not None and position_bias.dim() == 4:
        mask = _with_bias(mask, position_bias)
        position_bias = None
    gain = gain_of(module)
    call = Call(
        scale=float(scale), causal=causal, bias=position_bias, seen=seen, mask=mask,
        sequences=sequences, key_bias=key_bias, dropout=dropout,
        gain=None if gain is None else gain.offset_gain(query.shape[-2], key.shape[-2]),
        weights=bool(kwargs.get("output_attentions")) or wanted_weights.are_wanted(),
    )  # fmt: skip
    out, weights = attend(query, key, value, call)
    return out.transpose(1, 2).contiguous(), weights if call.weights else None


def gain_of(module: nn.Module) -> Any:
    """The gain that `add_urpe` has put on a module, or what stands in its place; or None.

    PEFT puts a module of its own around a gain that it trains.
    """
    config = getattr(module, "config", None)
    if not hasattr(module, "urpe"):
        if getattr(config, "_attn_implementation", None) != GAINED:
            return None
        msg = (
            f"{type(module).__name__} was saved with gains (add_urpe) and made without "
            "them. Load the model with from_pretrained, which puts them on."
        )
        raise InputError(msg)
    home: Any = module.urpe
    return None if home is None else getattr(home[0], GAIN)


def _up_to(
    seen: Tensor,
    causal: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values and bias of the tokens that a mask speaks of; a cache may have more."""
    n_q, n_k, m = query.shape[-2], key.shape[-2], seen.shape[-1]
    if not (n_q <= m <= n_k if causal else m == n_k):
        msg = (
            f"The mask has {m} columns for {n_q} queries and {n_k} keys. Give "
            "attention_mask of shape (sequences, keys), with a column for each key."
        )
        raise InputError(msg)
    if m == n_k:
        return key, value, bias
    if bias is not None:
        bias = bias[..., :m] if bias.dim() == 4 else bias[:, n_k - m :]
    return key[:, :, :m], value[:, :, :m], bias


def _with_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    """A bias of all pairs as numbers to add: n_q n_k of them, as the model has them."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -torch.inf)
    return bias + mask
