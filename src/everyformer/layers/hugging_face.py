"""Models of the library transformers, with a gain where their weights meet the values.

These models look up their attention function in a registry. Ours is entered there under
`IMPLEMENTATION`; it reads the gain of the module that calls it. transformers is imported
only for models that come from it.
"""

import sys
from collections.abc import Collection, Iterator
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.gains import ToeplitzGain
from everyformer.layers.weights import (
    attention_weights,
    hidden_pairs,
    operator_takes,
    scores,
)
from everyformer.ops import toeplitz_attention

IMPLEMENTATION = "everyformer_urpe"
"""Name of our attention function in the registry of transformers."""

HEADS = {
    "BertSelfAttention": "num_attention_heads",
    "RobertaSelfAttention": "num_attention_heads",
    "T5Attention": "n_heads",
    "GPT2Attention": "num_heads",
    "LlamaAttention": "config.num_attention_heads",
}
"""The attention classes that are supported, and where each keeps its number of heads."""

CROSS_ATTENTION = ("BertCrossAttention", "RobertaCrossAttention")
"""Classes that are left as they are: i - j has no meaning between two sequences."""


def is_hugging_face(model: nn.Module) -> bool:
    """Whether the model comes from transformers; does not import it."""
    library = sys.modules.get("transformers")
    return library is not None and isinstance(model, library.PreTrainedModel)


RECORD = "everyformer_urpe"
"""Name of the settings in the configuration of a model, which is saved with it."""


def attention_modules(
    model: nn.Module, leave: Collection[str] = ()
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Each self-attention of a model that is not left out, with its innermost model."""
    library = import_module("transformers")
    owners: dict[int, nn.Module] = {}
    for part in model.modules():  # outer ones first, so that inner ones overwrite
        if isinstance(part, library.PreTrainedModel):
            owners |= {id(inner): part for inner in part.modules()}
    cross = {
        id(layer.EncDecAttention)
        for layer in model.modules()
        if type(layer).__name__ == "T5LayerCrossAttention"
    }
    for name, module in model.named_modules():
        known = type(module).__name__ in HEADS and name not in leave
        if not known or id(module) in cross:
            continue
        if not getattr(module, "is_cross_attention", False):
            yield owners[id(module)], module


def why_not(model: nn.Module) -> str | None:
    """What stands against gains on this model."""
    known = {*HEADS, *CROSS_ATTENTION}
    strange = {
        type(module).__name__
        for module in model.modules()
        if hasattr(module, "config")
        and "Attention" in type(module).__name__
        and type(module).__name__ not in known
    }
    if strange:
        return f"it has {', '.join(sorted(strange))}; known are {', '.join(sorted(HEADS))}"
    return None


def num_heads(module: nn.Module) -> int:
    """Number of query heads of a supported module."""
    found: Any = module
    for name in HEADS[type(module).__name__].split("."):
        found = getattr(found, name)
    return int(found)


def attach(owner: nn.Module, module: nn.Module, gain: ToeplitzGain) -> None:
    """Let the module use the gain."""
    object.__setattr__(module, "urpe", (gain,))
    module.register_forward_pre_hook(_refuse_other_attention, with_kwargs=True)
    if not hasattr(owner, "urpe_guard"):
        guard = owner.register_forward_pre_hook(_refuse_calls, with_kwargs=True)
        object.__setattr__(owner, "urpe_guard", guard)


def switch(model: nn.Module, settings: dict[str, Any]) -> None:
    """Make the model call our attention function, and its configuration say so.

    The saved configuration asks for our function by name: `from_pretrained`, which would
    drop the gains, finds no such function, or one that refuses modules without a gain.
    """
    object.__setattr__(model, "urpe_registered", _Registered())
    library = import_module("transformers")
    set_implementation: Any = model.set_attn_implementation
    set_implementation(IMPLEMENTATION)
    for part in model.modules():
        if isinstance(part, library.PreTrainedModel):
            config: Any = part.config
            setattr(config, RECORD, settings)
            config.attn_implementation = IMPLEMENTATION
        if not hasattr(part, "urpe"):
            object.__setattr__(part, "urpe", None)  # without a gain, as it should be


class _Registered:
    """Lets a copy of a model, perhaps in another process, find our function again."""

    def __init__(self) -> None:
        register()

    def __reduce__(self) -> tuple[type["_Registered"], tuple[()]]:
        return _Registered, ()


def register() -> None:
    """Enter our attention function in the registries of transformers."""
    masking = import_module("transformers.masking_utils")
    import_module("transformers").AttentionInterface.register(
        IMPLEMENTATION, gained_attention
    )
    # Bools, True for seen; None where all or exactly the past is seen.
    masking.AttentionMaskInterface.register(IMPLEMENTATION, masking.sdpa_mask)
    _guard(import_module("transformers").PreTrainedModel)


def _guard(base: Any) -> None:
    """Let models of transformers refuse to be made or saved without their gains."""
    made, saved = base.__init__, base.save_pretrained
    if hasattr(saved, "everyformer"):
        return

    @wraps(made)
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        made(self, config, *args, **kwargs)
        used = getattr(self.config, "_attn_implementation", None)
        if getattr(config, RECORD, None) is not None and used != IMPLEMENTATION:
            msg = (
                f"attn_implementation={used!r} was given for a {type(self).__name__} that "
                "was saved with gains (add_urpe), which it knows nothing of. Load the "
                "model with everyformer.layers.load_with_urpe(folder), without it."
            )
            raise InputError(msg)

    @wraps(saved)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        why = _unrecorded(self)
        if why:
            msg = f"{type(self).__name__} cannot be saved with its gains: {why}"
            raise InputError(f"{msg}. Call add_urpe on the model that is saved.")
        return saved(self, *args, **kwargs)

    vars(save)["everyformer"] = True
    base.__init__, base.save_pretrained = init, save


def _unrecorded(model: Any) -> str:
    """What the configuration of a model does not say of its gains."""
    gained = {
        name
        for name, part in model.named_modules()
        if getattr(part, "urpe", None) is not None
    }
    settings = getattr(model.config, RECORD, None)
    if not gained or settings is None:
        return f"{min(gained)} has one, its configuration has no record" if gained else ""
    names = {id(part): name for name, part in model.named_modules()}
    leave = settings.get("leave", ())
    bare = {names[id(part)] for _, part in attention_modules(model, leave)} - gained
    return f"{min(bare)} has none, while its record says so" if bare else ""


def _refuse_other_attention(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    config: Any = module.config
    if config._attn_implementation != IMPLEMENTATION:
        msg = (
            f"{type(module).__name__} has a gain, but its attention implementation is "
            f"{config._attn_implementation!r}, which knows of none. Call "
            f"model.set_attn_implementation({IMPLEMENTATION!r}) to switch it on again."
        )
        raise InputError(msg)
    other = args[2] if len(args) > 2 else kwargs.get("key_value_states")
    if type(module).__name__ == "T5Attention" and other is not None:
        msg = (
            f"key_value_states has shape {tuple(other.shape)}: this T5Attention is "
            "cross-attention, where an offset i - j has no meaning. Give add_urpe its name "
            "in leave=(..)."
        )
        raise InputError(msg)


def _refuse_calls(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("past_key_values")
    if getattr(cache, "is_compileable", False):
        msg = (
            f"past_key_values is a {type(cache).__name__} of fixed size, so the number of "
            "keys does not tell the place of a query. Use the default cache."
        )
        raise InputError(msg)
    if kwargs.get("output_attentions") and type(module).__name__ == "GPT2Model":
        msg = (
            "output_attentions=True was given, but GPT-2 does not hand it on to its "
            "attention. Call the attention modules one by one to see their weights."
        )
        raise InputError(msg)


def gained_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it, times the gain of the module if it has one.

    The queries are the last of the tokens whose keys are given, as with a growing cache.
    """
    if not hasattr(module, "urpe"):
        msg = (
            f"{type(module).__name__} was saved with gains (add_urpe), which "
            "from_pretrained drops. Load the model with "
            "everyformer.layers.load_with_urpe(folder)."
        )
        raise InputError(msg)
    held: tuple[ToeplitzGain] | None = module.urpe  # pyright: ignore[reportAssignmentType]
    gain = None if held is None else held[0]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    n_q, n_k = query.shape[-2], key.shape[-2]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = causal and attention_mask is None and n_q > 1
    special = (
        position_bias is not None or attention_mask is not None or dropout > 0.0
        or kwargs.get("output_attentions", False)
    )  # fmt: skip
    if operator_takes(query) and not special and (not causal or n_q == n_k):
        out = toeplitz_attention(
            query, key, value, causal=causal, scale=scale,
            gain=None if gain is None else gain.offset_gain(n_q, n_k),
        )  # fmt: skip
        return out.transpose(1, 2).contiguous(), None
    logits = scores(query, key, scale)
    if position_bias is not None:
        logits = logits + position_bias
    hidden = hidden_pairs(n_q, n_k, causal=causal, key_padding=None, device=query.device)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        hidden = ~attention_mask
    elif attention_mask is not None:
        hidden = attention_mask == -torch.inf
        logits = logits + attention_mask.masked_fill(hidden, 0.0)
    weights = attention_weights(
        logits, hidden, None if gain is None else gain.matrix(n_q, n_k),
        dtype=value.dtype, dropout=dropout,
    )  # fmt: skip
    return (weights @ value).transpose(1, 2).contiguous(), weights
