"""Which axis of a module's input holds the tokens: (batch, n, d) or (n, batch, d)?

One sequence of a batch must not change the output of another, nor may the others change
what it is alone. A module that is fed with the axes swapped shows it: what it takes for the
tokens of one sequence are tokens of several.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from everyformer.checks.calling import Layout, are_logits, call, fed
from everyformer.checks.precision import ISOLATED
from everyformer.errors import InputError

LAYOUTS: tuple[Layout, ...] = ("batch_first", "tokens_first")
Redraw = Callable[[nn.Module, int], nn.Module]


@dataclass(frozen=True)
class Reading:
    """How a module is read.

    Attributes:
        layout: Where the tokens are.
        batched: Whether sequences of a batch do not meet, so that many can be run at once.
        isolated: Outputs that differ by less, relative to their size, are the same.
    """

    layout: Layout = "batch_first"
    batched: bool = False
    isolated: float = ISOLATED


BATCH_FIRST = Reading()
"""Tokens as rows, one sequence at a time."""


@dataclass(frozen=True)
class _Tried:
    """What a layout gave: how far sequences change each other; or an error."""

    alone: bool
    leak: float | None = None
    error: str = ""
    raised: bool = False
    isolated: float = ISOLATED

    @property
    def passes(self) -> bool:
        return self.leak is not None and self.leak <= self.isolated

    def __str__(self) -> str:
        if self.leak is not None:
            return f"one sequence changes the output of another by {self.leak:.2g}"
        return self.error


def reading_of(
    module: nn.Module,
    seq_len: int,
    d_model: int,
    redraw: Redraw,
    layout: str = "auto",
    isolated: float = ISOLATED,
) -> Reading:
    """The layout of a module, by a batch of two.

    A layout that passes is taken; that of an attribute `batch_first` is tried first. If
    both pass, a batch of n sequences decides: as many as there are tokens, so that a module
    with the axes swapped sees what it always sees.

    Args:
        module: In float64, not in training.
        seq_len: n.
        d_model: d.
        redraw: Draws the weights anew, from a seed: fresh ones may hide what is mixed.
        layout: "auto", or the layout to take.
        isolated: Sequences whose outputs differ by less, relative to their size, do not
            meet.

    Raises:
        InputError: If there is no such layout, or neither can be taken.
    """
    if layout not in ("auto", *LAYOUTS):
        known = ", ".join(("auto", *LAYOUTS))
        raise InputError(f"layout={layout!r} is not known. Use one of {known}.")
    order: list[Layout] = [one for one in LAYOUTS if layout in ("auto", one)]
    if getattr(module, "batch_first", None) is False:
        order.reverse()

    modules = (module, redraw(module, 0))

    def tried(batch: int) -> dict[Layout, _Tried]:
        shape = (batch, seq_len, d_model)
        return {one: _tried(modules, shape, one, isolated) for one in order}

    found = tried(2)
    passing: list[Layout] = [one for one in order if found[one].passes]
    if len(passing) > 1:
        found = tried(max(3, seq_len))
        passing = [one for one in order if found[one].passes]
    if passing:
        return Reading(passing[0], batched=True, isolated=isolated)
    alone: list[Layout] = [one for one in order if found[one].alone]
    if alone and layout != "auto":
        return Reading(alone[0], isolated=isolated)
    if alone == ["batch_first"] and found["batch_first"].raised:  # one sequence at a time
        return Reading("batch_first", isolated=isolated)
    if not alone:
        raise InputError(_cannot_run(module, (1, seq_len, d_model), found[order[0]]))
    told = "; ".join(f"as {_axes(one)}, {found[one]}" for one in order)
    msg = (
        f"{type(module).__name__} cannot be read as a map of single sequences, n = "
        f"{seq_len}, d = {d_model}, with two of them in a batch: {told}. Remove what mixes "
        "sequences (such as batch statistics), or say where its tokens are: "
        "layout='batch_first' or 'tokens_first' (--layout)."
    )
    raise InputError(msg)


def _axes(layout: Layout) -> str:
    return "(batch, n, d)" if layout == "batch_first" else "(n, batch, d)"


def _cannot_run(module: nn.Module, shape: tuple[int, ...], tried: _Tried) -> str:
    why = tried.error.rstrip(".")
    return (
        f"{type(module).__name__} cannot be run on tokens of shape {shape}: {why}. "
        "Give the n and d it was made for (--n, --d), or a module whose forward takes "
        "(batch, n, d) alone; wrap one that needs masks or other arguments. For a model of "
        "token ids, name the part that embeds them: embedding='wte' (--embedding)."
    )


def _tried(
    modules: Any, shape: tuple[int, int, int], layout: Layout, isolated: float
) -> _Tried:
    """How far sequences of a batch change each other, in the worst of some weights."""
    batch, n, d = shape
    X = torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape)))
    try:
        with torch.no_grad():
            single = [_run(module, X[0, :1], layout) for module in modules]
            width = _width(modules[0], X[0, :1], layout, d)
        wrong = [one for one in single if tuple(one.shape) != (1, n, width)]
        if wrong:
            return _Tried(alone=False, error=_misshapen((1, n, d), wrong[0]))
    except Exception as error:
        return _Tried(alone=False, error=_in_words(error))
    leak = 0.0
    try:
        for module, one in zip(modules, single, strict=True):
            with torch.no_grad():
                out = _run(module, X[0], layout)
            if tuple(out.shape) != (batch, n, width):
                return _Tried(alone=True, error=_misshapen(shape, out))
            for k in (0, batch - 1):
                other = X[0].clone()
                other[k] = X[1, k]
                with torch.no_grad():
                    changed = _run(module, other, layout)
                keep = [j for j in range(batch) if j != k]
                size = float(out.nan_to_num().abs().max().clamp(min=1.0))
                apart = [(out - changed)[keep], out[:1] - one]
                leak = max(leak, *(float(a.nan_to_num().abs().max()) / size for a in apart))
                if leak > isolated:
                    return _Tried(alone=True, leak=leak, isolated=isolated)
    except Exception as error:
        return _Tried(alone=True, error=_in_words(error), raised=True)
    return _Tried(alone=True, leak=leak, isolated=isolated)


def _width(module: nn.Module, x: torch.Tensor, layout: Layout, d: int) -> int:
    """The width of an output: d, or that of logits, which is the number of words."""
    found = fed(module, copy.deepcopy(x), layout)
    return call(module, copy.deepcopy(x), layout).shape[-1] if are_logits(found) else d


def _run(module: nn.Module, x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """On a copy: a module may write into its input."""
    return call(module, copy.deepcopy(x), layout)


def _misshapen(shape: tuple[int, ...], out: torch.Tensor) -> str:
    return (
        f"it maps {shape} to {tuple(out.shape)}, so it does not map sequences to sequences "
        "of one shape"
    )


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:300]}"
