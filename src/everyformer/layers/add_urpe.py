"""URPE on a model that exists already, in one line."""

from typing import TypeVar

from torch import nn

from everyformer.errors import InputError
from everyformer.layers import hugging_face, torch_attention
from everyformer.layers.gains import ToeplitzGain
from everyformer.layers.offsets import check_positive
from everyformer.papers import LUO2022, implements

M = TypeVar("M", bound=nn.Module)

GAIN = "urpe_gain"
"""Name of the gain in the module that owns it."""


@implements(LUO2022, "Equation 8")
def add_urpe(model: M, *, max_len: int, shared: bool = True, clamp: bool = False) -> M:
    """Put learnable factors c_{i-j} on the attention weights of a model, in place.

    They start at 1, where the model computes what it did. Self-attention alone is changed,
    cross-attention is not: i - j has no meaning between two sequences.

    Handles models made of `torch.nn.MultiheadAttention` (also in `nn.TransformerEncoder`,
    `nn.TransformerDecoder`, `nn.Transformer`), and BERT, RoBERTa, T5, GPT-2 and LLaMA of
    transformers. The gains are parameters of the model: `urpe_gain.table` in each stack of
    layers (the encoder or decoder of torch, the innermost `PreTrainedModel`), or with
    `shared=False` in each attention module. To load a saved state dict, call `add_urpe` on
    a fresh model first.

    Args:
        model: The model; changed in place.
        max_len: Longest sequence, with all tokens in the cache.
        shared: One gain for all layers of a stack, as Luo et al. do, or one for each.
        clamp: Clip the offsets of longer sequences instead of refusing them.

    Returns:
        The model.

    Raises:
        InputError: If the model has no attention that is known here, or gains already.

    Example:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> model = add_urpe(nn.TransformerEncoder(layer, 3), max_len=32)
        >>> model.urpe_gain.table.shape
        torch.Size([2, 63])
    """
    check_positive(max_len=max_len)
    foreign = hugging_face.is_hugging_face(model)
    _refuse(model, foreign)
    if foreign:
        pairs = [
            (owner, module, hugging_face.num_heads(module))
            for owner, module in hugging_face.attention_modules(model)
        ]
    else:
        found = list(torch_attention.attention_modules(model))
        pairs = [(owner, module, module.num_heads) for owner, module in found]
    if not pairs:
        msg = (
            f"{type(model).__name__} has no self-attention that is known here. Known are "
            f"torch.nn.MultiheadAttention, and in models of transformers: "
            f"{', '.join(sorted(hugging_face.HEADS))}."
        )
        raise InputError(msg)
    _refuse_mixed_heads([(id(owner), heads) for owner, _, heads in pairs], shared)
    for owner, module, heads in pairs:
        home = owner if shared else module
        if not hasattr(home, GAIN):
            like = next(module.parameters())
            gain = ToeplitzGain(
                heads, max_len, clamp=clamp, device=like.device, dtype=like.dtype
            )
            home.add_module(GAIN, gain)
        gain = home.get_submodule(GAIN)
        if not isinstance(gain, ToeplitzGain):
            msg = f"{type(home).__name__} has another attribute {GAIN}. Rename it."
            raise InputError(msg)
        if isinstance(module, nn.MultiheadAttention):
            torch_attention.attach(model, module, gain)
        else:
            hugging_face.attach(owner, module, gain)
    if foreign:
        hugging_face.switch(model)
    return model


def _refuse(model: nn.Module, foreign: bool) -> None:
    """Refuse what cannot be changed; nothing has been changed yet."""
    wrong: list[str] = []
    if any(hasattr(part, "urpe") for part in model.modules()):
        wrong.append("it has gains already; each model takes them once")
    elif foreign:
        wrong += [reason for reason in [hugging_face.why_not(model)] if reason]
    else:
        inner = [p for p in model.modules() if hugging_face.is_hugging_face(p)]
        if inner:
            wrong.append(
                f"it wraps {type(inner[0]).__name__} of transformers; call add_urpe on that"
            )
        for _, module in torch_attention.attention_modules(model):
            wrong += [reason for reason in [torch_attention.why_not(module)] if reason]
    if wrong:
        msg = (
            f"{type(model).__name__} cannot take URPE: {'; '.join(dict.fromkeys(wrong))}. "
            "Build such layers with RelativeAttention(..., gain=...) instead."
        )
        raise InputError(msg)


def _refuse_mixed_heads(heads: list[tuple[int, int]], shared: bool) -> None:
    counts: dict[int, set[int]] = {}
    for owner, number in heads:
        counts.setdefault(owner, set()).add(number)
    mixed = [sorted(found) for found in counts.values() if len(found) > 1]
    if shared and mixed:
        msg = (
            f"Layers of one stack have {mixed[0]} heads, so they cannot share one gain. "
            "Pass shared=False."
        )
        raise InputError(msg)
