"""The attention layers: exact ids of all representatives, and how far softmax is from them.

Every representative of a cell is run through hardmax attention in integers. Beside its
state z goes a bound e on the distance to what the network has there. With q, k, v the exact
query, keys and values of a head of size 1, a token attends to the token with the largest
q k; every other one is behind by

    gap >= (|q| - e_q) (|k_top - k| - 2 e_k)

so that the head's output is within leak = (n-1) exp(-gap) (range of v) of v_top. Heads that
attend to the same token are added before their error is: the two heads of a selective shift
cancel for every token that is not shifted, and e grows only with the shifts that happen.

Copies of a token have the same state, in real arithmetic: they count as one key.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights

SCALE = 600
"""Errors are float64 numbers in units of 2^-600: exp(-1024) is not 0 there."""

UP = 1 + 2.0**-40
DOWN = 1 - 2.0**-40
"""Factors that outweigh the rounding of a few float64 operations."""

LOG2_E = 1.442695040888963
"""Below log2(e), so that exp(-g) <= 2^-(g LOG2_E)."""

INT64_LIMIT = 2**62
MAX_EXPONENT = SCALE + 700
UNDERFLOW = 1100
"""exp(-gap) is 0 in float64 for gap > 760, that is, where it is below 2^-1096."""

Mode = Literal["real", "float64"]
"""Of what the distance is bounded: the network in real arithmetic, or its float64 run."""


@dataclass(frozen=True)
class Ids:
    """Tokens of representatives on the grid, exactly, and the distance to the network's.

    Attributes:
        numbers: State in units of 1/unit, integers, shape (count, n, d).
        unit: The denominator.
        first: False for a token that is a copy of one on its left, shape (count, n).
        error: Bounds on |state - numbers/unit| in units of 2^-SCALE, shape (count, n, d).
        mode: The state of what.
    """

    numbers: np.ndarray
    unit: int
    first: np.ndarray
    error: np.ndarray
    mode: Mode


@dataclass(frozen=True)
class _Head:
    """A head of size 1 with integer weights.

    Attributes:
        W_Q, W_K, W_V, W_O: Integers, shape (d,); W_Q and W_K are scaled.
        bias: b_Q, scaled like W_Q and by the unit of the state.
        scale_q: What W_Q was multiplied by.
        scale_k: What W_K was multiplied by.
    """

    W_Q: np.ndarray
    bias: int
    W_K: np.ndarray
    W_V: np.ndarray
    W_O: np.ndarray
    scale_q: int
    scale_k: int


def run_attention(stage: StageWeights, ids: Ids, softmax: bool) -> Ids:
    """All layers of an attention stage.

    Args:
        stage: The stage.
        ids: The representatives before it.
        softmax: Whether the network has softmax; hardmax makes no error.

    Raises:
        Undecided: If the layers are not of the form that can be followed, scores are too
            close, or different tokens tie.
    """
    if stage.arrays["W_Q"].shape[2] != 1:
        raise Undecided(stage.name, "heads of size above 1 are not followed")
    for layer in range(stage.layers):
        heads = _heads(stage, layer, ids.unit)
        ids = _attend(f"{stage.name}, layer {layer}", stage.name, heads, ids, softmax)
    return ids


def _heads(stage: StageWeights, layer: int, unit: int) -> list[_Head]:
    """The heads of a layer that write anything."""
    found: list[_Head] = []
    arrays = {
        name: [[Fraction(v) for v in np.ravel(head).tolist()] for head in array[layer]]
        for name, array in stage.arrays.items()
    }
    for h in range(len(arrays["W_Q"])):
        W_Q, W_K, W_V, W_O = (arrays[name][h] for name in ("W_Q", "W_K", "W_V", "W_O"))
        if not any(W_O):
            continue
        if any(v.denominator != 1 for v in (*W_V, *W_O)):
            raise Undecided(stage.name, f"layer {layer} has values that are no integers")
        bias = arrays["b_Q"][h][0] * unit
        scale_q = math.lcm(bias.denominator, *(v.denominator for v in W_Q))
        scale_k = math.lcm(*(v.denominator for v in W_K))
        found.append(
            _Head(
                W_Q=_integers([v * scale_q for v in W_Q]),
                bias=int(bias * scale_q),
                W_K=_integers([v * scale_k for v in W_K]),
                W_V=_integers(W_V),
                W_O=_integers(W_O),
                scale_q=scale_q,
                scale_k=scale_k,
            )
        )
    return found


def _integers(values: list[Fraction]) -> np.ndarray:
    return np.array([int(v) for v in values], dtype=object)


def _product(row: np.ndarray, numbers: np.ndarray, shift: int = 0) -> np.ndarray:
    """numbers @ row - shift, in int64 where it fits and in Python ints otherwise."""
    largest = _size(numbers) * sum(abs(int(v)) for v in row) + abs(shift)
    if largest < INT64_LIMIT and numbers.dtype != object:
        return numbers @ row.astype(np.int64) - shift
    return numbers.astype(object) @ row - shift


def _attend(where: str, stage: str, heads: list[_Head], ids: Ids, softmax: bool) -> Ids:
    """One layer."""
    numbers, first = ids.numbers, ids.first
    update = np.zeros(numbers.shape, dtype=object if numbers.dtype == object else np.int64)
    follows: list[_Attended] = []
    for head in heads:
        attended = _follow(where, stage, head, numbers, first)
        follows.append(attended)
        chosen = np.take_along_axis(attended.value, attended.top, axis=-1)  # [count, n]
        for i, weight in enumerate(head.W_O.tolist()):
            if weight:
                update = _added(update, i, chosen, weight)
    new = _sum(numbers, update)
    error = _grown(where, stage, heads, follows, ids) if softmax else ids.error
    if ids.mode == "float64":
        error = error + _rounding(stage, heads, follows, ids, new)
    return replace(ids, numbers=new, error=error)


def _added(update: np.ndarray, i: int, chosen: np.ndarray, weight: int) -> np.ndarray:
    if update.dtype != object and _size(chosen) * abs(weight) >= INT64_LIMIT // 4:
        update = update.astype(object)
    update[..., i] += chosen.astype(update.dtype) * weight
    return update


def _sum(numbers: np.ndarray, update: np.ndarray) -> np.ndarray:
    if object in (numbers.dtype, update.dtype) or (
        _size(numbers) + _size(update) >= INT64_LIMIT
    ):
        return numbers.astype(object) + update.astype(object)
    return numbers + update


@dataclass(frozen=True)
class _Attended:
    """What a head does with exact numbers.

    Attributes:
        query: Exact, times scale_q and the unit, shape (count, n).
        key: Exact, times scale_k and the unit, shape (count, n).
        value: Exact, times the unit, shape (count, n).
        top: To which token each token attends, shape (count, n).
        gap: Distance of the top key to the next one, in units of the key; -1 if there is no
            other token.
        tied: Whether other tokens have the same key, and (checked) the same value.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    top: np.ndarray
    gap: np.ndarray
    tied: np.ndarray


def _rounding(
    stage: str, heads: list[_Head], follows: list[_Attended], ids: Ids, new: np.ndarray
) -> np.ndarray:
    """What float64 adds to the error in scores, values and sums, in units of 2^-SCALE.

    Nothing, for a sequence whose state is exact: all of it is integers below 2^53, which is
    checked. Otherwise a few roundings of everything that is added.

    Raises:
        Undecided: If an integer is too large.
    """
    state = _size(ids.numbers)
    largest = [_size(new)]
    added = np.zeros(ids.numbers.shape)
    for head, attended in zip(heads, follows, strict=True):
        for row, scale in ((head.W_Q, head.bias), (head.W_K, 0), (head.W_V, 0)):
            entries = [abs(int(v)) for v in row]
            shared = math.gcd(*entries, scale)
            largest.append((state * sum(entries) + abs(scale)) // max(shared, 1))
        weights = np.abs(_to_float(head.W_O))
        largest.append(2 * len(heads) * int(_size(attended.value) * weights.max()))
        added += np.abs(_to_float(attended.value)).max(axis=-1)[:, None, None] * weights
    if max(largest) > 2**53:
        bits = max(largest).bit_length()
        raise Undecided(stage, f"float64 cannot hold integers of {bits} bits")
    added = (added + np.abs(_to_float(ids.numbers))) / ids.unit
    inexact = (ids.error > 0).any(axis=(1, 2), keepdims=True)
    return np.where(inexact, np.ldexp(added * 2.0**-48, SCALE), 0.0)


def _size(numbers: np.ndarray) -> int:
    """The largest absolute value."""
    return max(int(numbers.max()), -int(numbers.min())) if numbers.size else 0


def _follow(
    where: str, stage: str, head: _Head, numbers: np.ndarray, first: np.ndarray
) -> _Attended:
    query = _product(head.W_Q, numbers, head.bias)
    key, value = _product(head.W_K, numbers), _product(head.W_V, numbers)
    alone = first.sum(axis=-1) == 1
    idle = np.asarray(query == 0, dtype=bool) & ~alone[:, None]
    if idle.any():
        index = int(np.argmax(idle.any(axis=-1)))
        raise Undecided(stage, f"{where}: a query is 0 in representative {index}")
    sides = {sign: _extreme(where, stage, sign * key, value, first) for sign in (1, -1)}
    positive = np.asarray(query > 0, dtype=bool) | alone[:, None]
    top, gap, tied = (
        np.where(positive, sides[1][k][:, None], sides[-1][k][:, None]) for k in range(3)
    )
    return _Attended(query, key, value, top.astype(np.int64), gap, tied.astype(bool))


def _extreme(
    where: str, stage: str, key: np.ndarray, value: np.ndarray, first: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The token with the largest key, its lead (-1 without a rival), and ties."""
    lowest = key.min(initial=0) - 1
    shown = np.where(first, key, lowest)
    top = np.argmax(shown, axis=-1)
    best = np.take_along_axis(shown, top[:, None], axis=-1)
    ties = np.asarray((shown == best) & first, dtype=bool)
    tied = ties.sum(axis=-1) > 1
    if tied.any():
        chosen = np.take_along_axis(value, top[:, None], axis=-1)
        if (ties & np.asarray(value != chosen, dtype=bool)).any():
            raise Undecided(stage, f"{where}: different tokens have the same score")
    rest = np.where(ties, lowest, shown)
    second = rest.max(axis=-1)
    lead = np.where(np.asarray(second == lowest, dtype=bool), -1, best[:, 0] - second)
    return top, lead, tied


def _to_float(numbers: np.ndarray) -> np.ndarray:
    return (
        np.asarray(numbers, dtype=object).astype(np.float64)
        if (numbers.dtype == object)
        else numbers.astype(np.float64)
    )


def _grown(
    where: str, stage: str, heads: list[_Head], follows: list[_Attended], ids: Ids
) -> np.ndarray:
    """The bound on the error of the state after a layer, in units of 2^-SCALE."""
    error = ids.error
    count, n, d = error.shape
    grown = error.copy()
    shared = all((head.W_V == heads[0].W_V).all() for head in heads)
    net = np.zeros((count, n, n, d)) if shared else None
    for head, attended in zip(heads, follows, strict=True):
        weights = np.abs(_to_float(head.W_O))
        e_v = _dot(head.W_V, error)  # [count, n]
        leak = _leak(where, stage, head, attended, ids, e_v)
        grown += leak[..., None] * weights * UP
        own = np.take_along_axis(e_v, attended.top, axis=-1)
        own = np.where(attended.tied, e_v.max(axis=-1, keepdims=True), own)
        separate = attended.tied if net is not None else np.ones((count, n), dtype=bool)
        grown += np.where(separate, own, 0.0)[..., None] * weights * UP
        if net is not None:
            signed = np.where(attended.tied[..., None], 0.0, _to_float(head.W_O))
            place = attended.top[..., None, None]
            held = np.take_along_axis(net, np.broadcast_to(place, (count, n, 1, d)), axis=2)
            np.put_along_axis(
                net,
                np.broadcast_to(place, (count, n, 1, d)),
                held + signed[:, :, None],
                axis=2,
            )
    if net is not None and heads:
        e_v = _dot(heads[0].W_V, error)
        grown += np.einsum("cjki,ck->cji", np.abs(net), e_v) * UP
    return grown * UP


def _dot(row: np.ndarray, error: np.ndarray) -> np.ndarray:
    return error @ np.abs(_to_float(row)) * UP


def _leak(
    where: str,
    stage: str,
    head: _Head,
    attended: _Attended,
    ids: Ids,
    e_v: np.ndarray,
) -> np.ndarray:
    """How far a head's output is from the value it attends to, beyond that value's error.

    Units of 2^-SCALE, shape (count, n).
    """
    error = ids.error
    n = error.shape[1]
    rivals = np.asarray(attended.gap > 0, dtype=bool)
    query = np.abs(_to_float(attended.query)) / (head.scale_q * ids.unit) * DOWN
    lead = _to_float(attended.gap) / (head.scale_k * ids.unit) * DOWN
    query = query - to_real(_dot(head.W_Q, error)) / head.scale_q
    e_k = _dot(head.W_K, error) / head.scale_k * UP
    lead = lead - 2 * to_real(e_k.max(axis=-1, keepdims=True))
    if ids.mode == "float64":
        # A score is rounded once, by 2^-53 of its size: as if keys were off by that.
        size = np.abs(_to_float(attended.key)).max(axis=-1, keepdims=True)
        lead = lead - 2.0**-51 * size / (head.scale_k * ids.unit)
    if (rivals & ((query <= 0) | (lead <= 0))).any():
        raise Undecided(stage, f"{where}: the errors so far exceed the spacing of the ids")
    gap = np.where(rivals, query * lead * DOWN, np.inf)
    exponent = np.minimum(np.floor(gap * LOG2_E), MAX_EXPONENT)
    value = _to_float(attended.value) / ids.unit
    spread = value.max(axis=-1, keepdims=True) - value.min(axis=-1, keepdims=True)
    spread = (spread * UP + 2 * to_real(e_v.max(axis=-1, keepdims=True))) * UP
    leak = np.ldexp((n - 1) * spread, (SCALE - exponent).astype(np.int64))
    leak = np.where(rivals, np.maximum(leak, 2.0**-900), 0.0) * UP
    if ids.mode == "float64":
        leak = _rounded(attended, ids, np.where(exponent >= UNDERFLOW, 0.0, leak), value)
    return leak


def _rounded(
    attended: _Attended, ids: Ids, leak: np.ndarray, value: np.ndarray
) -> np.ndarray:
    """The same for a float64 run: what is lost in a sum is nothing, and copies share.

    Weights are 1 for the top token, or 1/c for c copies of it. A leak below 2^-60 of the
    value does not change the sum. With c = 1, 2, 4, ... copies nothing is rounded;
    otherwise each copy's share is, and so are their sums.
    """
    n = value.shape[-1]
    top = np.abs(np.take_along_axis(value, attended.top, axis=-1))
    lost = to_real(leak) < top * 2.0**-60
    copies = _copies(ids.first)
    shared = np.take_along_axis(copies, attended.top, axis=-1)
    even = (shared & (shared - 1)) == 0
    rounding = np.ldexp(top * (2 * n + 4) * 2.0**-53, SCALE)
    return np.where(lost, 0.0, leak) + np.where(even & ~attended.tied, 0.0, rounding)


def _copies(first: np.ndarray) -> np.ndarray:
    """How many copies each token has, itself included; copies stand side by side."""
    count, n = first.shape
    group = np.cumsum(first, axis=-1) - 1
    sizes = np.zeros((count, n), dtype=np.int64)
    np.add.at(sizes, (np.arange(count)[:, None], group), 1)
    return np.take_along_axis(sizes, group, axis=-1)


def to_real(scaled: np.ndarray) -> np.ndarray:
    """A bound in units of 2^-SCALE as a float64 number, rounded up."""
    return np.where(scaled > 0, np.maximum(np.ldexp(scaled, -SCALE), 2.0**-1000), 0.0) * UP
