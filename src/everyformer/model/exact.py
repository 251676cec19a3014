"""Exact evaluation: the forward pass in integers.

A hardmax network with rational weights maps rationals to rationals. Fractions would do, but
each operation on them takes a greatest common divisor. Instead every stage is conjugated by
a scaling: with D a common denominator of the state and of everything that is added to it,

    g'(y) = D g(y / D)

is a stage of the same form whose weights are integers. It runs on int64 as long as a bound
on every intermediate number allows, and on Python ints from there on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np

from everyformer.model.activation import PiecewiseLinear
from everyformer.model.forward import feed_forward_layer, only_heard, run_block
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.numerics.rationals import common_denominator, exact_array
from everyformer.progress import Progress, no_progress

INT64_LIMIT = 2**62

Scalars = list[tuple[Any, ...]]
"""The weights of feed-forward layers as Python numbers, one tuple for each layer."""


@dataclass(frozen=True)
class Converted:
    """A stage in units: as it runs on Python ints, and on int64 where its weights fit."""

    stage: Stage
    whole: Stage
    small: Stage | None
    scalars: Scalars | None


Cache = dict[tuple[int, int], Converted]
"""Converted stages by number and D."""


@dataclass(frozen=True)
class Multiples:
    """Exact numbers as integers over one denominator.

    Attributes:
        numbers: int64, or Python ints as objects.
        unit: The denominator D.
    """

    numbers: np.ndarray
    unit: int

    @classmethod
    def of(cls, values: np.ndarray) -> "Multiples":
        """An object array of ints and Fractions."""
        unit = common_denominator([values])
        return cls(exact_array(values * unit), unit)

    def values(self) -> np.ndarray:
        """The numbers themselves, as ints and Fractions."""
        return exact_array(self.numbers.astype(object) * Fraction(1, self.unit))

    def refined(self, denominator: int) -> "Multiples":
        """The same numbers over the least denominator that the given one divides."""
        shared = gcd(self.unit, _content(self.numbers))
        unit = lcm(self.unit // shared, denominator)
        factor = unit // (self.unit // shared)
        numbers = self.numbers // shared
        if numbers.dtype != object and _largest(numbers) * factor >= INT64_LIMIT:
            numbers = numbers.astype(object)
        return Multiples(numbers * factor, unit)


def _content(numbers: np.ndarray) -> int:
    """Greatest common divisor of all entries."""
    if numbers.dtype != object:
        return int(np.gcd.reduce(numbers, axis=None)) if numbers.size else 0
    return gcd(*numbers.reshape(-1).tolist())


def _largest(numbers: np.ndarray) -> int:
    """Largest absolute value."""
    return max(int(numbers.max()), -int(numbers.min())) if numbers.size else 0


def run_exact(
    stages: tuple[Stage, ...],
    state: np.ndarray,
    progress: Progress = no_progress,
    cache: Cache | None = None,
) -> Iterator[tuple[Stage, Multiples]]:
    """The state after each stage.

    Args:
        stages: Stages of a hardmax network.
        state: An object array of ints and Fractions, shape (*batch, n, d).
        progress: Called now and then.
        cache: Keeps converted weights from call to call.
    """
    cache = {} if cache is None else cache
    current = Multiples.of(state)
    for number, stage in enumerate(stages):
        current = current.refined(common_denominator(additive_arrays(stage)))
        held = cache.get((number, current.unit))
        if held is None or held.stage is not stage:
            held = cache[number, current.unit] = _convert(stage, current.unit)
        after = _run_integers(held, current.numbers, progress)
        current = Multiples(after, current.unit)
        if after.dtype == object and any(type(v) is not int for v in after.flat):
            current = Multiples.of(current.values())  # ties made fractions
        yield stage, current


def _convert(stage: Stage, unit: int) -> Converted:
    whole = _stage_in_units(stage, unit)
    small = _as_int64(whole)
    layer = whole.feed_forward if whole.attention is None else None
    scalars = _as_scalars(layer) if small is None and layer is not None else None
    return Converted(stage, whole, small, scalars)


def _as_scalars(layer: FeedForwardStack) -> Scalars:
    arrays = [layer.W_1, layer.b_1, np.swapaxes(layer.W_2, 1, 2), layer.b_2]
    if layer.phi is not None:
        phi = layer.phi
        arrays += [phi.breaks, phi.closed, phi.slopes, phi.intercepts]
    return list(zip(*(array.tolist() for array in arrays), strict=True))


def _run_scalars(
    name: str, layers: Scalars, state: np.ndarray, progress: Progress
) -> np.ndarray:
    """Feed-forward layers token by token on Python ints: for numbers beyond int64.

    For small arrays of large integers a plain loop is many times faster than numpy.
    """
    tokens: list[list[Any]] = state.reshape(-1, state.shape[-1]).tolist()
    for block, (W_1, b_1, W_2, b_2, *phi) in enumerate(layers):
        for token in tokens:
            update = list(b_2)
            for k, row in enumerate(W_1):
                t = b_1[k]
                for weight, entry in zip(row, token, strict=True):
                    t += weight * entry
                hidden = _scalar_phi(t, k, phi) if phi else max(t, 0)
                if hidden:
                    for i, weight in enumerate(W_2[k]):
                        update[i] += weight * hidden
            for i, change in enumerate(update):
                token[i] += change
        if block % 512 == 0:
            progress(name, block, len(layers))
    result = np.empty((len(tokens), state.shape[-1]), dtype=object)
    result[:] = tokens
    return result.reshape(state.shape)


def _scalar_phi(t: Any, unit: int, phi: list[Any]) -> Any:
    """One value of a function of Phi, as `PiecewiseLinear.apply` has it."""
    (first, second), (closed_1, closed_2) = phi[0][unit], phi[1][unit]
    if t < first or (t == first and closed_1):
        piece = 0
    elif t < second or (t == second and closed_2):
        piece = 1
    else:
        piece = 2
    return phi[2][unit][piece] * t + phi[3][unit][piece]


def _run_integers(held: Converted, state: np.ndarray, progress: Progress) -> np.ndarray:
    """All blocks of a stage with integer weights; int64 where every number fits."""
    stage, small = held.whole, held.small
    if held.scalars is not None:
        return _run_scalars(stage.name, held.scalars, state.astype(object), progress)
    limits = None if small is None else _growth(small, state.shape[-2])
    for block in range(stage.blocks):
        after = None
        if small is not None and limits is not None and _fits(state, limits[block]):
            after = _int64_block(small, block, state.astype(np.int64, copy=False))
        if after is None:
            after = run_block(stage, block, state.astype(object, copy=False), "hardmax")
        state = after
        if block % 512 == 0:
            progress(stage.name, block, stage.blocks)
    return state


def _int64_block(stage: Stage, block: int, state: np.ndarray) -> np.ndarray | None:
    """One block in int64, or None where a tie makes a fraction."""
    if stage.feed_forward is not None:
        return feed_forward_layer(stage.feed_forward, block, state)
    assert stage.attention is not None, "a stage has a half"  # noqa: S101
    return _int64_attention(stage.attention, block, state)


def _int64_attention(stack: AttentionStack, layer: int, x: np.ndarray) -> np.ndarray | None:
    """Hardmax attention with heads of size 1, without the products of the scores.

    Scores q k_j are largest where k_j is, for q > 0; where it is smallest, for q < 0; and
    equal everywhere for q = 0. Tied entries share equally; None if that makes a fraction.
    """
    update = np.zeros_like(x)
    for head in range(stack.W_Q.shape[1]):
        query = x @ stack.W_Q[layer, head, 0] - stack.b_Q[layer, head, 0]  # [*batch, n]
        key, value = x @ stack.W_K[layer, head, 0], x @ stack.W_V[layer, head, 0]
        ahead = np.sign(query)[..., :, None] * key[..., None, :]  # [*batch, n, n]
        if stack.mask is not None:
            ahead = only_heard(ahead, stack.mask[layer])
        wins = ahead == ahead.max(axis=-1, keepdims=True)
        total, winners = (wins * value[..., None, :]).sum(axis=-1), wins.sum(axis=-1)
        if (total % winners).any():
            return None
        update += (total // winners)[..., None] * stack.W_O[layer, head, :, 0]
    return x + update


def _fits(state: np.ndarray, growth: tuple[int, int]) -> bool:
    """Whether factor * max|state| + constant, and so every number, fits into int64."""
    factor, constant = growth
    if state.size == 0:
        return True
    if state.dtype == object and any(type(v) is not int for v in state.flat):
        return False
    return factor * _largest(state) + constant < INT64_LIMIT


def _as_int64(stage: Stage) -> Stage | None:
    """The stage in int64, or None if a weight does not fit or the form is another one."""
    halves = (stage.attention is None) + (stage.feed_forward is None)
    heads = stage.attention
    if halves != 1 or (heads is not None and (heads.W_Q.shape[2] != 1 or heads.relative)):
        return None
    arrays: dict[str, np.ndarray] = {}
    for name, array in stage.arrays():
        if array.dtype == bool:
            arrays[name] = array
            continue
        if any(type(v) is not int or abs(v) >= INT64_LIMIT for v in array.flat):
            return None
        arrays[name] = array.astype(np.int64)
    return Stage.from_arrays(stage.name, stage.source, arrays, stage.kind)


def _growth(stage: Stage, n: int) -> list[tuple[int, int]]:
    """For each layer (f, c): no number in it exceeds f max|state| + c, for n tokens."""

    def largest(array: np.ndarray, summed: int = 0) -> np.ndarray:
        """Of each layer: the largest entry, or the largest sum over the last axis."""
        sizes = abs(array.astype(object))
        if summed:
            sizes = sizes.sum(axis=-1)
        return sizes.reshape(len(array), -1).max(axis=-1)

    heads, layer = stage.attention, stage.feed_forward
    if heads is not None:
        rows = sum(largest(W, summed=1) for W in (heads.W_Q, heads.W_K, heads.W_V))
        # Tied values are added, up to n of them, before they are shared.
        factors = 1 + n * rows + heads.W_Q.shape[1] * largest(heads.W_O) * rows
        return list(zip(factors.tolist(), largest(heads.b_Q).tolist(), strict=True))
    assert layer is not None, "a stage has a half"  # noqa: S101
    rows, starts = largest(layer.W_1, summed=1), largest(layer.b_1)
    columns, ends = largest(layer.W_2, summed=1), largest(layer.b_2)
    slopes: np.ndarray | int = 1
    steps: np.ndarray | int = 0
    if layer.phi is not None:
        slopes, steps = 1 + largest(layer.phi.slopes), largest(layer.phi.intercepts)
    factors = 1 + columns * slopes * rows + slopes * rows
    constants = (columns + 1) * (slopes * starts + steps) + ends
    return list(zip(factors.tolist(), constants.tolist(), strict=True))


def additive_arrays(stage: Stage) -> list[np.ndarray]:
    """Arrays measured in the units of the state, whose denominators D must cover."""
    found: list[np.ndarray] = []
    if stage.attention is not None:
        found.append(stage.attention.b_Q)
        if stage.attention.b_V is not None:
            found.append(stage.attention.b_V)
    layer = stage.feed_forward
    if layer is not None:
        found += [layer.b_1, layer.b_2]
        if layer.phi is not None:
            found += [layer.phi.breaks, layer.phi.intercepts]
            constant = _is_step(layer.phi)
            found.append(np.moveaxis(layer.W_2, -1, 1)[constant])
    return found


def _is_step(phi: PiecewiseLinear) -> np.ndarray:
    """Which units (layers, r) are piecewise constant."""
    return np.asarray((phi.slopes == 0).all(axis=-1), dtype=bool)


def _stage_in_units(stage: Stage, D: int) -> Stage:
    """The stage conjugated by multiplication with D.

    Biases are multiplied by D. A piecewise constant phi keeps its values, and W_2 takes the
    factor D; any other phi is conjugated itself, phi'(t) = D phi(t / D), which multiplies
    its intercepts and breaks and leaves slopes and W_2 alone. ReLU commutes with D > 0.
    """
    attention, layer = stage.attention, stage.feed_forward
    if attention is not None:
        b_V, gain = attention.b_V, attention.gain
        attention = replace(
            attention,
            W_Q=exact_array(attention.W_Q),
            b_Q=_scaled(attention.b_Q, D),
            W_K=exact_array(attention.W_K),
            W_V=exact_array(attention.W_V),
            W_O=exact_array(attention.W_O),
            b_V=None if b_V is None else _scaled(b_V, D),
            gain=None if gain is None else exact_array(gain),
        )
    return replace(
        stage,
        attention=attention,
        feed_forward=None if layer is None else _feed_forward_in_units(layer, D),
    )


def _feed_forward_in_units(layer: FeedForwardStack, D: int) -> FeedForwardStack:
    scale, phi = np.array([[1]], dtype=object), layer.phi
    if phi is not None:
        step = _is_step(phi)  # [layers, r]
        # As Python ints: int64 would overflow in silence.
        large, one = np.array(D, dtype=object), np.array(1, dtype=object)
        scale = np.where(step, large, one)
        factor = np.where(step, one, large)[..., None]
        phi = replace(
            phi,
            breaks=_scaled(phi.breaks, D),
            slopes=exact_array(phi.slopes),
            intercepts=exact_array(exact_array(phi.intercepts) * factor),
        )
    return FeedForwardStack(
        W_1=exact_array(layer.W_1),
        b_1=_scaled(layer.b_1, D),
        W_2=exact_array(exact_array(layer.W_2) * scale[:, None, :]),
        b_2=_scaled(layer.b_2, D),
        phi=phi,
    )


def _scaled(array: np.ndarray, D: int) -> np.ndarray:
    return exact_array(exact_array(array) * D)
