"""Step 3: from ids to values, by feed-forward layers (Lemma 7), with its gaps closed."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.construct.shifts.constants import Constants
from everyformer.construct.shifts.contextual import contextual_state
from everyformer.construct.shifts.feed_forward import phi_layers, ray, units, window
from everyformer.construct.shifts.step import OWN, ProofStep, cite
from everyformer.construct.table import Table
from everyformer.files.description import StageKind
from everyformer.model.activation import PiecewiseLinear
from everyformer.model.stacks import Stage
from everyformer.numerics.kinds import NumberKind
from everyformer.papers import YUN2020, implements


def cap_ids(c: Constants, kind: NumberKind) -> ProofStep:
    """Bring ids above delta^{-(2n+2)d+1} down to it, one layer.

        Z_1 += phi(u^T Z - cap),   phi(t) = 0 for t < 0,  -t for t >= 0

    Only tokens beside an out-of-range one have such ids, too large for the four ReLUs of
    the next layer to cancel in float64. They stay above t_r.
    """
    phi = ray(kind, 1, left=(0, 0), right=(-1, 0))
    b_1 = kind.quotient(np.array([-c.cap], dtype=object), c.K)
    e_1 = units(kind, c.d)[0]
    stack = phi_layers(kind, W_1=kind.array(c.u), b_1=b_1, W_2=e_1, phi=phi)
    return ProofStep(Stage("cap ids", OWN, feed_forward=stack))


@implements(YUN2020, "Lemma 7")
def push_down(c: Constants, kind: NumberKind) -> ProofStep:
    """Subtract M from every coordinate of tokens with an id outside [t_l, t_r), one layer.

        Z -= M 1_d phi(u^T Z),   phi = 0 on [t_l, t_r), 1 outside

    M is a power of two above every coordinate of such a token, so that in float64 the
    factors are exact.
    """
    largest = 2 * c.cap if c.softened else _largest_beside_out_of_range(c)
    M = 1 << (largest // c.K + 1).bit_length()
    breaks = [Fraction(c.t_l, c.K), Fraction(c.t_r, c.K)]
    phi = window(
        kind, 1, breaks=breaks, closed=(False, False), inside=(0, 0), outside=(0, 1)
    )
    down = kind.array([-M] * c.d)
    stack = phi_layers(kind, W_1=kind.array(c.u), W_2=down, phi=phi)
    stage = Stage("push down", cite("Lemma 7"), feed_forward=stack)
    return ProofStep(stage, c.delta / 4)


def _largest_beside_out_of_range(c: Constants) -> int:
    """A bound on ids in a sequence with a coordinate at -delta^{-nd}, in units of delta.

    Each of at most n shifts multiplies the range of the ids by 1 + delta^{-d}, the last
    layer by 1 + delta^{-(n+1)d}.
    """
    spread = c.K * (c.out_of_range * sum(c.u) + c.V)
    return (1 + c.V) ** c.n * (1 + c.last_coefficient) * spread + c.lift


@implements(YUN2020, "Lemma 7")
def negative_to_zero(c: Constants, kind: NumberKind) -> ProofStep:
    """Send negative coordinates to 0, one layer each.

    Z_i += phi(Z_i),   phi(t) = -t for t < 0,  0 otherwise
    """
    e = units(kind, c.d)
    phi = ray(kind, c.d, left=(-1, 0), right=(0, 0))
    stack = phi_layers(kind, W_1=e, W_2=e, phi=phi)
    return ProofStep(Stage("negative to zero", cite("Lemma 7"), feed_forward=stack))


@dataclass(frozen=True)
class ValuePlan:
    """How ids become values without hitting a window twice.

    Attributes:
        passes: 1 (id to value) or 2 (id to code, code to value).
        scale: Values are stored divided by 2^scale and multiplied by it at the end.
        first_code: The smallest code; codes are consecutive integers.
    """

    passes: int
    scale: int
    first_code: int


def plan_values(c: Constants, table: Table, ids: np.ndarray) -> ValuePlan:
    """Choose passes, scale and codes.

    A token that holds a value A is hit again by a later window at id if |u^T A - id| is
    below delta/2. So every |u^T A| must lie below all codes, and all codes below all ids.
    Where they do not fit, the table is scaled down by a power of two and one last stage
    scales the result up.
    """
    smallest = int(ids.min()) if ids.size else c.t_l  # units of delta
    low = Fraction(smallest, c.K) - 1
    room = Fraction(1 if c.value_passes == 1 else ids.size + 4)
    largest = largest_projection(c, table.values)
    if room >= low:
        msg = f"{ids.size} codes do not fit below the smallest id {float(low)}."
        raise AssertionError(msg)
    scale = 0
    while largest / 2**scale + room > low:
        scale += 1
    return ValuePlan(c.value_passes, scale, int(largest / 2**scale) + 2)


def largest_projection(c: Constants, values: np.ndarray) -> Fraction:
    """A bound on |u^T A| for all values A, shape (..., d)."""
    u = np.array([float(factor) for factor in c.u])
    # sum_i u_i |A_i| bounds |u^T A| and, in float64, every rounding of that sum as well.
    size = float((np.abs(values) @ u).max()) if values.size else 0.0
    return Fraction(size) * (1 + Fraction(1, 2**40))


@implements(YUN2020, "Lemma 7")
def value_map(
    c: Constants, kind: NumberKind, table: Table, ids: np.ndarray, plan: ValuePlan
) -> Iterator[ProofStep]:
    """Replace each id by its value, one layer for each token of each sequence.

        Z += (A_L,j - g_c(L)_j) phi(u^T Z - id),   phi = 1 on (-delta/2, delta/2), else 0

    Differs from the paper: ids decrease from layer to layer, so that in float64 all four
    ReLUs of a token not yet mapped are exactly 0; and the work may be done in two passes,
    each id to a small integer code, each code to its value.
    """
    order = np.argsort(ids, axis=None)[::-1]
    flat_ids = ids.reshape(-1)[order]
    state = contextual_state(c, table.columns, ids).reshape(-1, c.d)[order]
    values = table.values.reshape(-1, c.d)[order] / 2.0**plan.scale
    half = c.delta / 2
    if plan.passes == 1:
        change = kind.array(values) - kind.quotient(state, c.K)
        names = "value map", cite("Lemma 7")
        yield _replace(c, kind, names, kind.quotient(-flat_ids, c.K), change, half)
    else:
        codes = plan.first_code + np.arange(len(order))[::-1]
        held = np.zeros((len(order), c.d), dtype=np.int64)
        held[:, 0] = codes
        change = kind.quotient(held * c.K - state, c.K)
        names = "ids to codes", OWN
        yield _replace(c, kind, names, kind.quotient(-flat_ids, c.K), change, half)
        change = kind.array(values) - kind.array(held)
        names = "value map", cite("Lemma 7")
        yield _replace(c, kind, names, kind.array(-codes), change, Fraction(1, 2))
    if plan.scale:
        yield scale_up(c, kind, plan.scale)


def _replace(
    c: Constants,
    kind: NumberKind,
    names: tuple[StageKind, str],
    minus_ids: np.ndarray,
    change: np.ndarray,
    half: Fraction,
) -> ProofStep:
    """Layers Z += change phi(u^T Z - id), phi = 1 within `half` of 0."""
    phi = window(
        kind,
        len(minus_ids),
        breaks=[-half, half],
        closed=(True, False),
        inside=(0, 1),
        outside=(0, 0),
    )
    stack = phi_layers(kind, W_1=kind.array(c.u), b_1=minus_ids, W_2=change, phi=phi)
    return ProofStep(Stage.of(*names, feed_forward=stack), half / 2)


def scale_up(c: Constants, kind: NumberKind, scale: int) -> ProofStep:
    """Double every coordinate `scale` times: Z_i += Z_i, exact in float64.

    Phi has no function without a constant piece, so each doubling takes two layers for
    each coordinate: Z_i += max(Z_i, 0), then Z_i += min(Z_i, 0).
    """
    halves = np.array([[0, 1, 1], [1, 0, 0]])  # slopes of max(t, 0) and min(t, 0)
    layers = 2 * scale * c.d
    phi = PiecewiseLinear.repeat(
        layers,
        breaks=kind.array([0, 1]),
        closed=(False, False),
        slopes=kind.array(np.tile(halves, (scale * c.d, 1))[:, None, :]),
        intercepts=kind.array([0, 0, 0]),
    )
    e = np.tile(units(kind, c.d).repeat(2, axis=0), (scale, 1))
    stack = phi_layers(kind, W_1=e, W_2=e, phi=phi)
    return ProofStep(Stage("scale up", OWN, feed_forward=stack))


def written_values(
    c: Constants, table: Table, ids: np.ndarray, plan: ValuePlan
) -> np.ndarray:
    """The values that the float64 network ends with on the plateaus, bit for bit.

    A value is written as the difference to what the token held before; the difference and
    the sum are rounded once each.
    """
    if plan.passes == 1:
        held = contextual_state(c, table.columns, ids).astype(np.float64) / c.K
    else:
        ranks = np.argsort(np.argsort(ids, axis=None)).reshape(ids.shape)
        held = np.zeros(table.values.shape)
        held[..., 0] = plan.first_code + ranks
    values = table.values / 2.0**plan.scale
    return (held + (values - held)) * 2.0**plan.scale


def clamp(c: Constants, kind: NumberKind, written: np.ndarray) -> ProofStep:
    """Clip every coordinate to the range of the table, twice, one layer each.

        Z_i += phi(Z_i),   phi(t) = lo_i - t for t < lo_i,  hi_i - t for t > hi_i,  else 0

    On the ramps of the quantiser ids are arbitrary and outputs as large as ids; clipped,
    they err by no more than the range of f. In float64 t + (hi - t) may miss hi by half an
    ulp of t: the second pass repairs that.
    """
    flat = written.reshape(-1, c.d)
    if not c.positional or len(flat) == 0:
        flat = np.concatenate([flat, np.zeros((1, c.d))])  # duplicates and outside: 0
    low, high = flat.min(axis=0), flat.max(axis=0)
    high = np.where(high > low, high, np.nextafter(low, np.inf))
    pairs = np.stack([low, high], axis=-1)
    ends = np.stack([low, np.zeros(c.d), high], axis=-1)
    phi = PiecewiseLinear.repeat(
        2 * c.d,
        breaks=kind.array(np.tile(pairs, (2, 1)))[:, None, :],
        closed=(False, True),
        slopes=kind.array([-1, 0, -1]),
        intercepts=kind.array(np.tile(ends, (2, 1)))[:, None, :],
    )
    e = np.tile(units(kind, c.d), (2, 1))
    stack = phi_layers(kind, W_1=e, W_2=e, phi=phi)
    return ProofStep(Stage("clamp", OWN, feed_forward=stack))
