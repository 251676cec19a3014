"""Long stages of windows: looked up, not run.

Most layers of a constructed network are windows: Z += change for w^T Z in a small interval,
and nothing elsewhere. Where no two overlap, a token meets the one it lies in, if that layer
is still ahead, and no other.
"""

from dataclasses import dataclass, replace

import numpy as np

from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.rounding import gamma, lowest_bits, sums_exactly
from everyformer.certify.shifts.context import UP
from everyformer.certify.shifts.layers import Tokens, residual, run_layer, seen
from everyformer.certify.shifts.piecewise import layer_function
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights

FEW_LAYERS = 64
"""Stages of at most so many layers are followed layer by layer."""


def follow_layers(stage: StageWeights, tokens: Tokens) -> Tokens:
    """All layers of a short feed-forward stage, one after the other.

    Raises:
        Undecided: If a layer has a form that is not followed.
    """
    for index in range(stage.layers):
        function = layer_function(stage.layer(index))
        if function is None:
            raise Undecided(stage.name, f"layer {index} looks in more than one direction")
        tokens = run_layer(f"layer {index}", stage.name, function, tokens)
    return tokens


@dataclass(frozen=True)
class Windows:
    """A stage of layers Z += change for w^T Z in [low_in, high_in].

    Nothing is added outside (low_out, high_out). Sorted by position; no two overlap.

    Attributes:
        direction: w, shape (d,).
        layer: The layer of each window.
        low_out, low_in, high_in, high_out: Increasing ends of its ramps.
        change: What the plateau adds, shape (count, d).
        column: The weight of the rising ReLU, shape (count, d); None for rationals.
    """

    direction: np.ndarray
    layer: np.ndarray
    low_out: np.ndarray
    low_in: np.ndarray
    high_in: np.ndarray
    high_out: np.ndarray
    change: np.ndarray
    column: np.ndarray | None


def read_windows(stage: StageWeights) -> Windows:
    """Read every layer of a stage as a window.

    Raises:
        Undecided: Naming a layer that is not a window, or two that overlap.
    """
    found = _phi_windows(stage) if "phi.breaks" in stage.arrays else _relu_windows(stage)
    order = np.argsort(found.low_out, kind="stable")
    names = ("layer", "low_out", "low_in", "high_in", "high_out", "change")
    sorted_arrays = {name: getattr(found, name)[order] for name in names}
    column = None if found.column is None else found.column[order]
    windows = replace(found, **sorted_arrays, column=column)
    overlap = np.asarray(windows.high_out[:-1] > windows.low_out[1:], dtype=bool)
    if overlap.any():
        k = int(np.argmax(overlap))
        pair = sorted((int(windows.layer[k]), int(windows.layer[k + 1])))
        raise Undecided(
            stage.name, f"the windows of layers {pair[0]} and {pair[1]} overlap"
        )
    return windows


def _relu_windows(stage: StageWeights) -> Windows:
    """Four ReLUs on one row: up, level, down, level again."""
    W_1, b_1, W_2, b_2 = (stage.arrays[name] for name in ("W_1", "b_1", "W_2", "b_2"))
    if W_1.shape[1] != 4:
        raise Undecided(stage.name, f"{W_1.shape[1]} hidden units are not a window's four")
    w = W_1[0, 0]
    knots = -b_1
    ramp = knots[:, 1] - knots[:, 0]
    same = (w == W_1).all(axis=(1, 2)) & (b_2 == 0).all(axis=-1)
    same &= (W_2[:, :, :1] * np.array([1, -1, -1, 1]) == W_2).all(axis=(1, 2))
    same &= (ramp > 0) & (knots[:, 1] <= knots[:, 2])
    same &= knots[:, 3] - knots[:, 2] == ramp
    for a, b in ((0, 1), (2, 3)):
        same &= residual(knots[:, b], -knots[:, a], ramp) == 0
    same &= np.abs(np.frexp(ramp)[0]) == 0.5  # a power of two: change is exact
    change = W_2[:, :, 0] * ramp[:, None]
    same &= ((W_2[:, :, 0] == 0) | (np.abs(change) > 2.0**-1000)).all(axis=-1)
    if not same.all():
        layer = int(np.argmin(same))
        raise Undecided(stage.name, f"layer {layer} is not a window on one direction")
    return Windows(
        direction=w,
        layer=np.arange(len(W_1)),
        low_out=knots[:, 0],
        low_in=knots[:, 1],
        high_in=knots[:, 2],
        high_out=knots[:, 3],
        change=change,
        column=W_2[:, :, 0],
    )


def _phi_windows(stage: StageWeights) -> Windows:
    """A function of Phi that is constant between its breaks and 0 outside."""
    W_1, b_1, W_2 = (stage.arrays[name] for name in ("W_1", "b_1", "W_2"))
    breaks, slopes = stage.arrays["phi.breaks"], stage.arrays["phi.slopes"]
    heights = stage.arrays["phi.intercepts"]
    if W_1.shape[1] != 1:
        raise Undecided(stage.name, f"{W_1.shape[1]} hidden units instead of one")
    w = W_1[0, 0]
    same = (w == W_1).all(axis=(1, 2)) & (stage.arrays["b_2"] == 0).all(axis=-1)
    same &= (slopes == 0).all(axis=(1, 2)) & (heights[:, 0, [0, 2]] == 0).all(axis=-1)
    same = same.astype(bool)
    if not same.all():
        layer = int(np.argmin(same))
        raise Undecided(stage.name, f"layer {layer} is not a window on one direction")
    low, high = (breaks[:, 0, k] - b_1[:, 0] for k in (0, 1))
    return Windows(
        direction=w,
        layer=np.arange(len(W_1)),
        low_out=low,
        low_in=low,
        high_in=high,
        high_out=high,
        change=W_2[:, :, 0] * heights[:, 0, 1:2],
        column=None,
    )


def look_up(stage: str, windows: Windows, tokens: Tokens) -> Tokens:
    """Send every token through all windows of a stage.

    Raises:
        Undecided: If a token lies on a ramp, or (float64) above a window yet to come.
    """
    last = np.full(len(tokens.centre), -1)
    if tokens.mode == "float64" and not (np.diff(windows.layer) < 0).all():
        why = "the windows do not come in decreasing order: float64 may not cancel"
        raise Undecided(stage, why)
    active = np.flatnonzero(~tokens.lost)
    while len(active):
        here = replace(tokens, centre=tokens.centre[active], radius=tokens.radius[active])
        t, off, _ = seen(windows.direction, here)
        place, hit, unclear = _find(windows, t, off, here.exact)
        ahead = hit & (windows.layer[place] > last[active])
        if tokens.mode == "float64":
            # A token that meets no further window must lie below all that are to come:
            # there no ReLU is active. One that float64 has rounded meets none in safety.
            rounded = (here.radius != 0).any(axis=-1)
            stays = ~ahead & ~(_ends(t, off)[1] <= windows.low_out[0])
            gone = rounded & (unclear | ahead | stays)
            tokens = tokens.losing(np.isin(np.arange(len(last)), active[gone]))
            unclear = (unclear | stays) & ~gone
            ahead &= ~gone
        if unclear.any():
            k = int(np.argmax(unclear))
            raise Undecided(
                stage,
                f"a token at {float(t[k]):.17g} +- {float(off[k]):.3g} is neither on the "
                f"plateau of the window of layer {int(windows.layer[place[k]])} nor clear "
                "of all windows",
            )
        active, place = active[ahead], place[ahead]
        tokens = _hit(windows, place, t[ahead], tokens, active)
        last[active] = windows.layer[place]
    return tokens


def _ends(t: np.ndarray, off: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """t - off and t + off, rounded outward; t itself where nothing is off."""
    if t.dtype == object:
        return t, t
    low = np.nextafter(t - off * UP, -np.inf)
    high = np.nextafter(t + off * UP, np.inf)
    return np.where(off == 0, t, low), np.where(off == 0, t, high)


def _find(
    windows: Windows, t: np.ndarray, off: np.ndarray, exact: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The window next below each t, whether t is on its plateau, and whether neither."""
    last = len(windows.low_out) - 1
    place = np.searchsorted(windows.low_out, t, side="right") - 1
    below, known = place < 0, np.maximum(place, 0)
    following = np.minimum(place + 1, last)
    if exact:  # windows jump at their ends, which belong to neither side
        low = high = t
        inside = (windows.low_in[known] < t) & (t < windows.high_in[known])
        passed = windows.high_out[known] < t
        ahead = t < windows.low_out[following]
    else:
        low, high = _ends(t, off)
        inside = (windows.low_in[known] <= low) & (high <= windows.high_in[known])
        passed = windows.high_out[known] <= low
        ahead = high <= windows.low_out[following]
    hit = inside.astype(bool) & ~below
    clear = (passed.astype(bool) | below) & (ahead.astype(bool) | (place == last))
    return known, hit, ~hit & ~clear


def _hit(
    windows: Windows,
    place: np.ndarray,
    t: np.ndarray,
    tokens: Tokens,
    moving: np.ndarray,
) -> Tokens:
    """The tokens `moving` after the change of their windows."""
    centre, radius = tokens.centre.copy(), tokens.radius.copy()
    old, change = tokens.centre[moving], windows.change[place]
    centre[moving] = old + change
    if windows.column is None:
        return replace(tokens, centre=centre)
    if tokens.mode == "real":
        radius[moving] = (radius[moving] + residual(old, change, centre[moving])) * UP
    else:
        off = _window_rounding(windows, place, t)
        # An update that is off may also round its sum with the state the other way.
        more = np.abs(centre[moving]) * 2.0**-51
        radius[moving] = np.where(off == 0, 0.0, off + more)
    return replace(tokens, centre=centre, radius=radius)


def _window_rounding(windows: Windows, place: np.ndarray, t: np.ndarray) -> np.ndarray:
    """What a float64 run of the two active ReLUs of a window may be off by.

    Nothing where all of it is exact. In the middle of a window the two are 2 rho and rho,
    with rho a power of two: the products are exact, and 2 c - c is c for every float64 c.
    """
    assert windows.column is not None, "float64 runs have ReLUs"  # noqa: S101
    column = windows.column[place]  # [count, d]
    knots = np.stack([windows.low_out[place], windows.low_in[place]], axis=-1)
    terms = np.stack([np.broadcast_to(t[:, None], knots.shape), -knots], axis=-1)
    exact = sums_exactly(terms, lowest_bits(terms)).all(axis=-1)
    hidden = t[:, None] - knots
    products = column[..., None] * hidden[:, None, :]  # [count, d, 2]
    bits = lowest_bits(column)[..., None] + lowest_bits(hidden)[:, None, :]
    middle = (hidden[:, 0] == 2 * hidden[:, 1]) & (np.frexp(hidden[:, 1])[0] == 0.5)
    fine = sums_exactly(products, bits) | middle[:, None]
    fine &= np.asarray(exact)[:, None]
    rounding = np.abs(products).sum(axis=-1) * float(gamma(8)) * UP + UNDERFLOW
    return np.where(fine, 0.0, rounding)
