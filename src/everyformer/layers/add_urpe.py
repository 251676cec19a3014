"""URPE on a model that exists already, in one line."""

import logging
from collections.abc import Sequence
from importlib import import_module
from os import PathLike
from typing import Any, TypeVar

from torch import nn

from everyformer.errors import InputError
from everyformer.layers import torch_attention
from everyformer.layers.gain_share import gain_share
from everyformer.layers.gains import GAIN, ToeplitzGain
from everyformer.layers.hugging_face import is_hugging_face, register, urpe
from everyformer.layers.hugging_face.registering import Registered
from everyformer.layers.offsets import check_positive
from everyformer.papers import LUO2022, implements

M = TypeVar("M", bound=nn.Module)

LOGGER = logging.getLogger(__name__)


@implements(LUO2022, "Equation 8")
def add_urpe(
    model: M,
    *,
    max_len: int,
    shared: bool = True,
    clamp: bool = False,
    leave: Sequence[str] = (),
) -> M:
    """Put learnable factors c_{i-j} on the attention weights of a model, in place.

    They start at 1, where the model computes what it did. Self-attention alone is changed,
    cross-attention is not: i - j has no meaning between two sequences. Modules with "cross"
    or the like in their names, and those named in `leave`, stay as they are; another module
    that is then called with a query that is not its key refuses the call.

    Handles models made of `torch.nn.MultiheadAttention` (also in `nn.TransformerEncoder`,
    `nn.TransformerDecoder`, `nn.Transformer`), and BERT, RoBERTa, T5, GPT-2 and LLaMA of
    transformers. The gains are parameters of the model: `urpe_gain.table` in each stack of
    layers (the encoder or decoder of torch, the innermost `PreTrainedModel`), or with
    `shared=False` in each attention module. To load a saved state dict, call `add_urpe` on
    a fresh model first. What `save_pretrained` of transformers has saved, `from_pretrained`
    loads with its gains, if everyformer is imported. (Where it is not, transformers refuses
    the name of our attention function; if another `attn_implementation` is asked for there,
    its report of unexpected weights is all that tells.) Call `add_urpe` on the model that
    is saved: one of which only a part has gains is not saved.

    What the gains cost is told to the log of this module, at the level INFO, and again by
    `gain_share`: "URPE: 12,276 numbers beside 109,514,298 parameters, 0.0112 % more".

    Args:
        model: The model; changed in place.
        max_len: Longest sequence, with all tokens in the cache.
        shared: One gain for all layers of a stack, as Luo et al. do, or one for each.
        clamp: Clip the offsets of longer sequences instead of refusing them.
        leave: Names of attention modules, as in `named_modules`, that stay as they are.

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
    foreign = is_hugging_face(model)
    _refuse(model, foreign, leave)
    if foreign:
        register()
        pairs = [
            (owner, module, urpe.num_heads(module))
            for owner, module in urpe.attention_modules(model, leave)
        ]
    else:
        found = list(torch_attention.attention_modules(model, leave))
        pairs = [(owner, module, module.num_heads) for owner, module in found]
    if not pairs:
        msg = (
            f"{type(model).__name__} has no self-attention that is known here. Known are "
            f"torch.nn.MultiheadAttention, and in models of transformers: "
            f"{', '.join(sorted(urpe.HEADS))}."
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
        if not isinstance(home.get_submodule(GAIN), ToeplitzGain):
            msg = f"{type(home).__name__} has another attribute {GAIN}. Rename it."
            raise InputError(msg)
        if isinstance(module, nn.MultiheadAttention):
            torch_attention.attach(model, module, home)
        else:
            urpe.attach(owner, module, home)
    if foreign:
        settings = {"max_len": max_len, "shared": shared, "clamp": clamp}
        urpe.switch(model, {**settings, "leave": list(leave)})
        object.__setattr__(model, "everyformer_registered", Registered())
    LOGGER.info("%s", gain_share(model))
    return model


def load_with_urpe(
    folder: str | PathLike[str], model_class: type[Any] | None = None, **options: Any
) -> Any:
    """Load a model of transformers that was saved with its gains.

    As `from_pretrained` of its class does, where everyformer is imported; this refuses
    files that were saved without gains.

    Args:
        folder: Where `save_pretrained` has saved it, or its name on the hub.
        model_class: A class of transformers; by default that of the saved model.
        options: For `from_pretrained` of that class.

    Returns:
        The model.

    Raises:
        InputError: If there is no record of gains, or some of them are not in the file.
    """
    library = import_module("transformers")
    register()
    config: Any = library.AutoConfig.from_pretrained(folder)
    if getattr(config, urpe.RECORD, None) is None:
        msg = (
            f"The configuration in {folder} has no record of gains. Load the model with "
            "from_pretrained, and call add_urpe if it should have them."
        )
        raise InputError(msg)
    made = model_class or getattr(library, config.architectures[0])
    return made.from_pretrained(folder, **options)


def _refuse(model: nn.Module, foreign: bool, leave: Sequence[str]) -> None:
    """Refuse what cannot be changed; nothing has been changed yet."""
    wrong: list[str] = []
    modules = dict(model.named_modules())
    unknown = [name for name in leave if name not in modules]
    if unknown:
        wrong.append(f"leave names {', '.join(unknown)}, which it does not have")
    if any(getattr(part, "urpe", None) is not None for part in model.modules()):
        wrong.append("it has gains already; each model takes them once")
    elif foreign:
        wrong += [reason for reason in [urpe.why_not(model)] if reason]
    else:
        inner = [p for p in model.modules() if is_hugging_face(p)]
        if inner:
            wrong.append(
                f"it wraps {type(inner[0]).__name__} of transformers; call add_urpe on that"
            )
        for _, module in torch_attention.attention_modules(model, leave):
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
