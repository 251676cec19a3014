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

Under a mask token k attends to the tokens of A_k alone: the top and the next key are taken
among them. The range of values and the errors of keys are taken over all tokens, which is
no less.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from everyformer.certify.on_cells.values import Mode as Mode
from everyformer.certify.overflow import UNDERFLOW
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
VANISHES = 1100
"""exp(-gap) is 0 in float64 for gap > 760, that is, where it is below 2^-1096."""


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
    for name, plain in (("gain", 1), ("b_V", 0)):  # C = 1 and b_V = 0 change nothing
        if name in stage.arrays and (stage.arrays[name] != plain).any():
            raise Undecided(stage.name, f"{name} is not {plain} everywhere")
    # Tokens first, representatives last: everything below runs along contiguous memory.
    state = _State(
        numbers=np.ascontiguousarray(np.moveaxis(ids.numbers, 0, -1)),
        error=np.ascontiguousarray(np.moveaxis(ids.error, 0, -1)),
        first=np.ascontiguousarray(ids.first.T),
        alone=ids.first.sum(axis=-1) == 1,
        even=_copies_are_even(ids.first.T),
        unit=ids.unit,
        mode=ids.mode,
    )
    for layer in range(stage.layers):
        heads = _heads(stage, layer, ids.unit)
        mask = stage.arrays["mask"][layer] if "mask" in stage.arrays else None
        step = _Layer(stage.name, layer, heads, softmax, mask)
        state = step.attend(state)
    return replace(
        ids,
        numbers=np.ascontiguousarray(np.moveaxis(state.numbers, -1, 0)),
        error=np.ascontiguousarray(np.moveaxis(state.error, -1, 0)),
    )


def _heads(stage: StageWeights, layer: int, unit: int) -> list[_Head]:
    """The heads of a layer that write anything."""
    found: list[_Head] = []
    arrays = {
        name: [[Fraction(v) for v in np.ravel(head).tolist()] for head in array[layer]]
        for name, array in stage.arrays.items()
        if name != "mask"
    }
    for h in range(len(arrays["W_Q"])):
        W_Q, W_K, W_V, W_O = (arrays[name][h] for name in ("W_Q", "W_K", "W_V", "W_O"))
        if not any(W_O):
            continue
        if any(v.denominator != 1 for v in (*W_V, *W_O)):
            raise Undecided(stage.name, f"layer {layer} has values that are not integers")
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


def _size(numbers: np.ndarray) -> int:
    """The largest absolute value."""
    return max(int(numbers.max()), -int(numbers.min())) if numbers.size else 0


def _product(row: np.ndarray, numbers: np.ndarray, shift: int = 0) -> np.ndarray:
    """sum_i row_i numbers_i - shift: int64 where it fits, Python ints otherwise."""
    entries = [int(v) for v in row]
    largest = _size(numbers) * sum(abs(v) for v in entries) + abs(shift)
    if largest >= INT64_LIMIT:
        numbers = numbers.astype(object)
    total = numbers[:, 0] * entries[0] - shift
    for i in range(1, len(entries)):
        total = total + numbers[:, i] * entries[i]
    return total


@dataclass(frozen=True)
class _State(Ids):
    """`Ids` with tokens first: numbers and errors (n, d, count), `first` (n, count).

    Attributes:
        alone: Which representatives have one token, up to copies; shape (count,).
        even: Whether the copies of each token are 1, 2, 4, ...; shape (n, count).
    """

    alone: np.ndarray
    even: np.ndarray


def _copies_are_even(first: np.ndarray) -> np.ndarray:
    """Whether each token has 1, 2, 4, ... copies; copies stand side by side."""
    n, count = first.shape
    group = np.cumsum(first, axis=0) - 1
    sizes = np.zeros((n, count), dtype=np.int64)
    for j in range(n):
        sizes[group[j], np.arange(count)] += 1
    copies = np.take_along_axis(sizes, group, axis=0)
    return (copies & (copies - 1)) == 0


@dataclass(frozen=True)
class _Attended:
    """What a head does with exact numbers; all of shape (n, count).

    Attributes:
        head: The head.
        query: Times scale_q and the unit.
        key: Times scale_k and the unit.
        value: Times the unit.
        top: To which token each token attends.
        gap: Distance of the top key to the next one; -1 if there is no other token.
        tied: Whether other tokens have the same key, and (checked) the same value.
    """

    head: _Head
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    top: np.ndarray
    gap: np.ndarray
    tied: np.ndarray


@dataclass(frozen=True)
class _Layer:
    """One attention layer: its place, for messages, its heads, and who hears whom."""

    stage: str
    number: int
    heads: list[_Head]
    softmax: bool
    mask: np.ndarray | None = None

    def undecided(self, why: str) -> Undecided:
        """What to raise."""
        return Undecided(self.stage, f"layer {self.number}: {why}")

    def attend(self, state: _State) -> _State:
        """The state after the layer."""
        follows = [self.follow(head, state) for head in self.heads]
        numbers = state.numbers
        growth = sum(_size(a.value) * sum(abs(int(w)) for w in a.head.W_O) for a in follows)
        if _size(numbers) + growth >= INT64_LIMIT:
            numbers = numbers.astype(object)
        new = numbers.copy()
        for attended in follows:
            chosen = np.take_along_axis(attended.value, attended.top, axis=0)
            for i, weight in enumerate(attended.head.W_O.tolist()):
                if weight:
                    new[:, i] += chosen.astype(new.dtype) * weight
        error = state.error
        if self.softmax:
            error = self.grown(follows, state)
        if state.mode == "float64":
            error = error + self.rounding(follows, state, new, error)
        return replace(state, numbers=new, error=error)

    def follow(self, head: _Head, state: _State) -> _Attended:
        """Queries, keys, values, and to which token each token attends."""
        numbers = state.numbers
        query = _product(head.W_Q, numbers, head.bias)
        key, value = _product(head.W_K, numbers), _product(head.W_V, numbers)
        if (np.asarray(query == 0, dtype=bool) & ~state.alone).any():
            raise self.undecided("a query is 0")
        up = self.extremes(key, value, state.first)
        down = self.extremes(-key, value, state.first)
        positive = np.asarray(query > 0, dtype=bool) | state.alone
        top, gap, tied = (np.where(positive, a, b) for a, b in zip(up, down, strict=True))
        return _Attended(head, query, key, value, top, gap, tied)

    def extremes(
        self, key: np.ndarray, value: np.ndarray, first: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """`extreme` of the tokens that each token hears: all of them, without a mask."""
        if self.mask is None:
            return self.extreme(key, value, first)
        each = [self.extreme(key, value, first & row[:, None]) for row in self.mask]
        return tuple(np.stack(parts) for parts in zip(*each, strict=True))

    def extreme(
        self, key: np.ndarray, value: np.ndarray, first: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The token with the largest key, its lead (-1 without a rival), and ties."""
        lowest = key.min(initial=0) - 1
        shown = np.where(first, key, lowest)
        top = np.argmax(shown, axis=0)
        best = shown.max(axis=0)
        ties = np.asarray((shown == best) & first, dtype=bool)
        tied = ties.sum(axis=0) > 1
        if tied.any():
            chosen = np.take_along_axis(value, top[None], axis=0)
            if (ties & np.asarray(value != chosen, dtype=bool)).any():
                raise self.undecided("different tokens have the same score")
        second = np.where(ties, lowest, shown).max(axis=0)
        alone = np.asarray(second == lowest, dtype=bool)
        return top, np.where(alone, -1, best - second), tied

    def grown(self, follows: list[_Attended], state: _State) -> np.ndarray:
        """The bound on the error of the state after the layer, in units of 2^-SCALE.

        Coefficients of heads that attend to the same token are added first, if all heads
        have the same W_V; heads with ties, between which softmax may choose, are not.
        """
        error = state.error
        n, _, count = error.shape
        grown = error.copy()
        shared = all((a.head.W_V == self.heads[0].W_V).all() for a in follows)
        net: dict[int, np.ndarray] = {}
        for attended in follows:
            e_v = _dot(attended.head.W_V, error)
            off = self.leak(attended, state, e_v)
            own = np.take_along_axis(e_v, attended.top, axis=0)
            own = np.where(attended.tied, e_v.max(axis=0), own)
            off = off + np.where(attended.tied, own, 0.0) if shared else off + own
            for i, weight in enumerate(attended.head.W_O.tolist()):
                if not weight:
                    continue
                grown[:, i] += off * (abs(float(weight)) * UP)
                if shared:
                    held = net.setdefault(i, np.zeros((n, n, count)))  # [k, j, count]
                    chosen = attended.top == np.arange(n)[:, None, None]
                    held += np.where(chosen & ~attended.tied, float(weight), 0.0)
        for i, held in net.items():
            e_v = _dot(self.heads[0].W_V, error)
            for k in range(n):
                grown[:, i] += np.abs(held[k]) * e_v[k] * UP
        return grown * UP

    def leak(self, attended: _Attended, state: _State, e_v: np.ndarray) -> np.ndarray:
        """How far a head is from the value it attends to, beyond that value's error.

        Units of 2^-SCALE, shape (n, count).
        """
        head, unit, error = attended.head, state.unit, state.error
        n = len(error)
        rivals = np.asarray(attended.gap > 0, dtype=bool)
        query = np.abs(_to_float(attended.query)) * (DOWN / (head.scale_q * unit))
        query = query - to_real(_dot(head.W_Q, error)) * (UP / head.scale_q)
        lead = _to_float(attended.gap) * (DOWN / (head.scale_k * unit))
        e_k = _dot(head.W_K, error).max(axis=0) * (UP / head.scale_k)
        lead = lead - 2 * to_real(e_k)
        if state.mode == "float64":
            # Keys are rounded d times at most, scores once: as if keys were off by that.
            sizes = _dot(head.W_K, np.abs(_to_float(state.numbers))).max(axis=0)
            share = (len(head.W_K) + 3) * 2.0**-52
            lead = lead - share * sizes / (head.scale_k * unit)
        if not (~rivals | ((query > 0) & (lead > 0))).all():
            raise self.undecided(
                "softmax may choose another token, for all we know: scores are too close "
                f"for the errors so far. lambda = {2048 * unit**2} would do"
            )
        gap = np.where(rivals, query * lead * DOWN, np.inf)
        exponent = np.minimum(np.floor(gap * LOG2_E), MAX_EXPONENT)
        value = _to_float(attended.value) / unit
        spread = (value.max(axis=0) - value.min(axis=0)) * UP
        spread = (spread + 2 * to_real(e_v.max(axis=0))) * UP
        leak = np.ldexp((n - 1) * spread, (SCALE - exponent).astype(np.int64))
        leak = np.where(rivals, np.maximum(leak, 2.0**-900), 0.0) * UP
        if state.mode == "float64":
            leak = np.where(exponent >= VANISHES, 0.0, leak)
            return _rounded(attended, state, leak, exponent, value)
        return leak

    def rounding(
        self,
        follows: list[_Attended],
        state: _State,
        new: np.ndarray,
        error: np.ndarray,
    ) -> np.ndarray:
        """What float64 adds in scores, values and sums, in units of 2^-SCALE.

        Nothing, for a sequence whose state is exact: all of it is integers below 2^53, and
        that is checked. Otherwise a few roundings of everything that is added.
        """
        size = _size(state.numbers)
        largest = [_size(new)]
        for attended in follows:
            head = attended.head
            for row, shift in ((head.W_Q, head.bias), (head.W_V, 0)):
                entries = [abs(int(v)) for v in row]
                shared = math.gcd(*entries, shift)
                scale = max(shared & -shared, 1)  # float64 has no use for other factors
                largest.append((size * sum(entries) + abs(shift)) // scale)
            heaviest = max(abs(int(w)) for w in head.W_O)
            largest.append(2 * len(follows) * _size(attended.value) * heaviest)
        if max(largest) > 2**53:
            bits = max(largest).bit_length()
            raise self.undecided(f"float64 cannot hold integers of {bits} bits")
        # By the error after the layer: one that begins here already rounds the sums.
        inexact = (error != 0).any(axis=(0, 1))
        if not inexact.any():
            return np.zeros_like(state.error)
        added = np.abs(_to_float(state.numbers))
        for attended in follows:
            sizes = np.abs(_to_float(attended.value)).max(axis=0)
            added = added + sizes * np.abs(_to_float(attended.head.W_O))[:, None]
        added = added * (2.0**-48 / state.unit) + UNDERFLOW
        return np.where(inexact, np.ldexp(added, SCALE), 0.0)


def _to_float(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float64)


def _dot(row: np.ndarray, error: np.ndarray) -> np.ndarray:
    """sum_i |row_i| error_i, rounded up: (n, d, count) to (n, count)."""
    total = error[:, 0] * abs(float(row[0]))
    for i in range(1, len(row)):
        total = total + error[:, i] * abs(float(row[i]))
    return total * UP


def _rounded(
    attended: _Attended,
    state: _State,
    leak: np.ndarray,
    exponent: np.ndarray,
    value: np.ndarray,
) -> np.ndarray:
    """The leak of a float64 run: what is lost in a sum is nothing, and copies share.

    If all other weights add up to less than 2^-54 beside the top one's, the sum of weights
    is 1 (or the number c of copies), and the top weight 1 (or 1/c). If their products with
    values are below 2^-54 of the top value too, they do not change the sum. With c = 1, 2,
    4, ... copies nothing is rounded; otherwise each copy's share is, and so are their sums.
    """
    n = len(value)
    top = np.abs(np.take_along_axis(value, attended.top, axis=0))
    largest = np.abs(value).max(axis=0)
    others = np.ldexp(float(n), -np.minimum(exponent, 1000.0).astype(np.int64))
    hidden = (exponent >= 64) & (others * largest < top * 2.0**-56)
    nothing = hidden | (leak == 0)
    even = np.take_along_axis(state.even, attended.top, axis=0)
    exact = even & ~attended.tied & nothing
    rounding = np.ldexp(largest * ((4 * n + 8) * 2.0**-53), SCALE)
    return np.where(nothing, 0.0, leak) + np.where(exact, 0.0, rounding)


def to_real(scaled: np.ndarray) -> np.ndarray:
    """A bound in units of 2^-SCALE as a float64 number, rounded up."""
    return np.where(scaled == 0, 0.0, np.maximum(np.ldexp(scaled, -SCALE), 2.0**-1000)) * UP
