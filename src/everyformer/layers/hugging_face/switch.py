"""Models of transformers on our operator: switched on, and off again.

A model that runs on it has attention modules of swapped classes, where they need one, and
configurations that ask for our function; these are copies, so that other models made of
the same configuration do not change with it.
"""

import copy
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from everyformer.errors import InputError
from everyformer.layers.hugging_face import wanted_weights
from everyformer.layers.hugging_face.classes import (
    attention_of,
    names,
    why_not,
)
from everyformer.layers.hugging_face.function import GAINED, NAME, is_ours
from everyformer.layers.hugging_face.swapping import swap, unswap

BEFORE = "everyformer_before"
"""Attribute of a part of a model: its configuration before, the handles of hooks, and its
configuration as it was when they came.

None instead of a configuration if the part was made for our function."""


def is_hugging_face(model: nn.Module) -> bool:
    """Whether the model comes from transformers; does not import it."""
    library = sys.modules.get("transformers")
    return library is not None and isinstance(model, library.PreTrainedModel)


def parts_of(model: nn.Module) -> Iterator[Any]:
    """The models of transformers in a model, the outer ones first."""
    return (part for part in model.modules() if is_hugging_face(part))


def switch_on(model: nn.Module) -> None:
    """Let a model run on our operator; refuse, with nothing changed, what is not known."""
    refuse(model)
    copies: dict[int, Any] = {}
    memo: dict[int, Any] = {}  # a configuration within another one is copied once
    new = [part for part in parts_of(model) if BEFORE not in vars(part)]
    for old in [part.config for part in new]:
        if id(old) not in copies:
            copies[id(old)] = copy.deepcopy(old, memo)
            copies[id(old)]._attn_implementation = NAME
    for part in new:
        first = copy.deepcopy(copies[id(part.config)])
        vars(part)[BEFORE] = (part.config, wanted_weights.listen(part), first)
    for module in model.modules():
        held = vars(module).get("config")
        if id(held) in copies:
            vars(module)["config"] = copies[id(held)]
    swap_all(model)


def switch_off(model: nn.Module) -> None:
    """Undo `switch_on`."""
    olds: dict[int, Any] = {}
    for part in parts_of(model):
        if BEFORE in vars(part):
            old, handles, first = vars(part).pop(BEFORE)
            if old is None:
                usual = part.get_correct_attn_implementation(None)
                part.config._attn_implementation = usual
            else:
                _hand_over(part.config, first, old)
                olds[id(part.config)] = old
            for handle in handles:
                handle.remove()
    for known in {known for _, known in attention_of(model)}:
        if known.undo is not None:
            known.undo(model)
    for module in model.modules():
        unswap(module)
        held = vars(module).get("config")
        if id(held) in olds:
            vars(module)["config"] = olds[id(held)]


def _hand_over(now: Any, first: Any, old: Any) -> None:
    """What was set in a configuration since it was copied stays with the model.

    A new vocabulary, for one, sets its size there.
    """
    for name, value in vars(now).items():
        known = vars(first).get(name)
        if name.startswith("_attn_implementation"):
            continue
        if isinstance(value, type(known)) and hasattr(value, "sub_configs"):
            _hand_over(value, known, vars(old)[name])
        elif name not in vars(first) or value != known:
            vars(old)[name] = value


def is_on(model: nn.Module) -> bool:
    """Whether `switch_on` has been at this model."""
    return any(BEFORE in vars(part) for part in parts_of(model))


def swap_all(model: nn.Module) -> None:
    """Give the attention modules the classes that make their bias a vector."""
    for module, known in list(attention_of(model)):
        if known.ours is not None:
            swap(module, known.ours)
    for known in {known for _, known in attention_of(model)}:
        if known.adapt is not None:
            known.adapt(model)


def refuse(model: nn.Module) -> None:
    """Refuse a model that is not known, by the names of its classes."""
    strange = "it is not a model of transformers"
    if isinstance(model, nn.Module) and list(parts_of(model)):
        strange = why_not(model) or _own_rule(model) or _not_finite(model)
        if strange is None and not list(attention_of(model)):
            strange = f"it has no attention that is known; known are {', '.join(names())}"
    if strange is not None:
        msg = f"{type(model).__name__} cannot run on everyformer's operator: {strange}"
        raise InputError(f"{msg}. Nothing was changed.")


def has_gains(model: nn.Module) -> bool:
    """Whether `add_urpe` has put gains on a model."""
    return any(getattr(part, "urpe", None) is not None for part in model.modules())


def _own_rule(model: nn.Module) -> str | None:
    """Gains, or an ALiBi that a subclass makes in another way."""
    if has_gains(model):
        return "it has gains (add_urpe), and runs on it already"
    for part in parts_of(model):
        if getattr(part.config, "_attn_implementation", None) == GAINED:
            return (
                f"the configuration of its {type(part).__name__} is that of a model with "
                "gains (add_urpe), and it was made without them; from_pretrained puts "
                "them on"
            )
        for name in ("build_alibi_tensor", "build_mpt_alibi_tensor"):
            rule = getattr(type(part), name, None)
            if rule is not None and not rule.__module__.startswith("transformers."):
                return f"its class {type(part).__name__} has a {name} of its own"
    return None


def _not_finite(model: nn.Module) -> str | None:
    """Biases that hold NaN, which would spread over whole rows."""
    for name, part in model.named_parameters():
        checked = "relative_attention_bias" in name and not part.is_meta
        if checked and bool(part.detach().isnan().any()):
            return f"{name} holds NaN; load its weights again"
    return None


def switch_on_new(model: Any) -> None:
    """The same for a model that was made for our function, or a part of one."""
    strange = why_not(model)
    if strange is not None:
        msg = (
            f"attn_implementation={NAME!r} was asked for, but {type(model).__name__} "
            f"cannot have it: {strange}. Leave it out."
        )
        raise InputError(msg)
    for part in parts_of(model):
        if BEFORE not in vars(part) and part.config._attn_implementation == NAME:
            vars(part)[BEFORE] = (None, wanted_weights.listen(part), None)
    swap_all(model)


def let_falcon_choose(model: Any) -> None:
    """Falcon looks up its class by the name of the implementation when it is made."""
    defined = sys.modules.get(type(model).__module__)
    choices = getattr(defined, "FALCON_ATTENTION_CLASSES", None)
    if choices is not None and is_ours(model.config):
        choices.setdefault(NAME, choices["eager"])
