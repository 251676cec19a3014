"""That no number of a float64 run overflows, and what underflow may add.

Rounding is bounded as a share of what is rounded (`certify/rounding.py`). That fails twice:
below 2^-1022, where a product loses up to 2^-1075 however small it is; and above 2^1024,
where inf - inf is nan, which no clamp removes.

Underflow. What is lost in a layer meets at most two more factors before it is added to the
state, weights or registers of at most 2^200: 2^-1075 2^400, times at most 2^60 terms, is
less than UNDERFLOW = 2^-500. So much is added wherever something may round, by a run or by
the prover: small weights do no harm, whatever they are multiplied with later.

Overflow. On the ramps nothing is known of a network without registers but its clamp. So a
bound on the state is carried through all layers, for every input:

* z + psi(w . z), psi continuous and linear between bends, is at most |z| plus the largest
  |psi| at a bend or, with slope a beyond the last bend t, at most |I + a w^T| |z| + |a t|
  more than that.
* a window adds little to a state of any size; see `_window_updates`.
* attention adds an average of values: |z| grows by a factor 1 + |W_O| |W_V|; see
  `_Shifts.reach` for long stages, in which that would be too much.
"""

from dataclasses import dataclass

import numpy as np

from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, Weights
from everyformer.targets.box import Box

LARGEST = 2.0**200
"""Of weights, and of the registers of networks that have some."""

UNDERFLOW = 2.0**-500
"""More than what is lost in a layer by underflow."""

REACH = 2.0**400
"""Of states without registers; the square of it, times lambda, is a score."""

LIMIT = 2.0**900
"""Of hidden units and scores, and of their products with weights."""

PLAIN = (("gain", 1.0), ("b_V", 0.0))
"""A gain and a bias of the value that change nothing."""

SLACK = 2.0**-30
"""More than the roundings of a million layers, and of this module."""


def outside(weights: Weights, low: float, high: float) -> str | None:
    """The first array with a number that is neither 0 nor between low and high in size."""
    arrays = {
        f"{stage.name}, {name}": array
        for stage in weights.stages
        for name, array in stage.arrays.items()
        if array.dtype == np.float64
    }
    if weights.registers is not None:
        held = vars(weights.registers).items()
        arrays |= {f"registers, {name}": a for name, a in held if a is not None}
    if weights.positions is not None:
        arrays["positions"] = weights.positions.astype(np.float64)
    for name, array in arrays.items():
        sizes = np.abs(array[array != 0])
        if not ((sizes >= low) & (sizes <= high)).all():
            return name
    return None


def check_reach(weights: Weights, box: Box) -> None:
    """See that a float64 run overflows nowhere, on the ramps neither; without registers.

    Raises:
        Undecided: Naming the stage in which it may.
    """
    size = max(abs(end) for end in (*box.lows, *box.highs))
    if weights.positions is not None:
        size += float(np.abs(weights.positions).max())
    with np.errstate(over="ignore", invalid="ignore"):
        for stage in weights.stages:
            if stage.half == "attention":
                size = after_attention(stage, size, weights.seq_len)
            else:
                size = after_feed_forward(stage, size)
            if not size <= REACH:  # nan neither
                why = "nothing shows that a float64 run does not overflow on the ramps"
                raise Undecided(stage.name, why)


def after_feed_forward(stage: StageWeights, size: float) -> float:
    """A bound on the state after layers of ReLUs, with their rounding; or infinity."""
    W_1, b_1, W_2 = (stage.arrays[name] for name in ("W_1", "b_1", "W_2"))
    shift = np.abs(stage.arrays["b_2"]).max(axis=-1)
    rows, columns = np.abs(W_1).sum(axis=-1), np.abs(W_2).max(axis=1)  # [layers, r]
    r, d = W_1.shape[1:]
    steep, fixed = (columns * rows).sum(axis=-1), (columns * np.abs(b_1)).sum(axis=-1)
    factor, added = _one_direction(W_1, b_1, W_2)
    factor = np.where(np.isfinite(factor), factor, 1 + steep)
    added = np.where(np.isfinite(added), added, fixed)
    share = (d + r + 10) * 2.0**-52
    factor = (factor + share * (1 + steep)) * (1 + share)
    added = (added + share * fixed + shift) * (1 + share)
    largest = rows.max(axis=-1), np.abs(b_1).max(axis=-1)
    updates = _window_updates(W_1, b_1, W_2) + np.where(shift == 0, 0.0, np.inf)
    for grows, adds, update, *parts in zip(
        *(v.tolist() for v in (factor, added, updates, steep, fixed, *largest)), strict=True
    ):
        hidden = parts[0] * size + parts[1], parts[2] * size + parts[3]
        if not all(part <= LIMIT for part in hidden):  # nan neither
            return float("inf")
        size = min(grows * size + adds, size * (1 + 2.0**-52) + update)
    return size


def _window_updates(W_1: np.ndarray, b_1: np.ndarray, W_2: np.ndarray) -> np.ndarray:
    """What a float64 run of each window adds at most, to a token anywhere; or infinity.

    A window is c (relu(t + b_1) - relu(t + b_2) - relu(t + b_3) + relu(t + b_4)), with t =
    w . z. A run adds b_k to a part P of the sum t, and then the rest of it. Let b be the
    largest |b_k|. For |P| >= 2^54 b all b_k are lost in P. Otherwise |P + b_k| <= 2^55 b;
    the next term is either so large that all of it is lost in that, or below 2^109 b; and
    so on for d terms. So either all four ReLUs are one number h, and c h - c h - c h + c h
    is 0 in any order, if products are rounded before they are added; or all are below H =
    2^(56 d) b, and the sum is off by a few roundings of 4 |c| H.
    """
    d = W_1.shape[2]
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    if W_1.shape[1] != 4:
        return np.full(len(W_1), np.inf)
    window = (W_1[:, :1] == W_1).all(axis=(1, 2))
    window &= (W_2[:, :, :1] * signs == W_2).all(axis=(1, 2))
    # Products with powers of two are exact: it does not matter when they are rounded.
    window &= ((W_1 == 0) | (np.abs(np.frexp(W_1)[0]) == 0.5)).all(axis=(1, 2))
    column = np.abs(W_2[:, :, 0]).max(axis=-1)
    ramps = np.abs(b_1[:, 1] - b_1[:, 0]) + np.abs(b_1[:, 3] - b_1[:, 2])
    highest = np.ldexp(np.abs(b_1).max(axis=1), min(56 * d, 1000))
    noise = 8 * (d + 8) * 2.0**-52 * highest
    return np.where(window, column * (ramps + noise) * (1 + SLACK), np.inf)


def _one_direction(
    W_1: np.ndarray, b_1: np.ndarray, W_2: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of each layer whose rows are w, -w or 0: |z + psi(w . z)| <= factor |z| + added.

    Infinite for other layers; without the rounding of a run, and without b_2.
    """
    layers, r, d = W_1.shape
    first = np.asarray(W_1.any(axis=-1)).argmax(axis=1)
    w = W_1[np.arange(layers), first]  # [layers, d]
    same, opposite = ((s * w[:, None] == W_1).all(axis=-1) for s in (1.0, -1.0))
    sign = np.where(W_1.any(axis=-1), same * 1.0 - opposite, 0.0)
    known = ((sign != 0) | ~W_1.any(axis=-1)).all(axis=-1)
    bends = np.where(sign != 0, -sign * b_1, 0.0)
    seen = sign[:, None] * bends[:, :, None] + b_1[:, None]  # [layers, bend, r]
    hidden, sizes = np.maximum(seen, 0.0), np.abs(W_2)
    at = np.abs(np.einsum("lkr,ldr->lkd", hidden, W_2))
    at = at + np.einsum("lkr,ldr->lkd", hidden, sizes) * 2.0**-40
    added = at.max(axis=(1, 2))
    factor = np.ones(layers)
    beyond = np.zeros(layers)
    for side in (1.0, -1.0):
        active = np.where(sign == side, side, 0.0)
        slope = np.einsum("ldr,lr->ld", W_2, active)
        error = np.einsum("ldr,lr->ld", sizes, np.abs(active)) * (r * 2.0**-52)
        matrix = np.eye(d) + slope[:, :, None] * w[:, None]
        own = np.abs(matrix).sum(axis=-1) + error * np.abs(w).sum(axis=-1)[:, None]
        factor = np.maximum(factor, own.max(axis=-1) * (1 + (d + 4) * 2.0**-52))
        far = np.abs(bends).max(axis=1) * (np.abs(slope) + error).max(axis=-1)
        beyond = np.maximum(beyond, far)
    unknown = np.where(known, 0.0, np.inf)
    return factor + unknown, (added + beyond) * (1 + SLACK) + unknown


def after_attention(stage: StageWeights, size: float, n: int) -> float:
    """A bound on the state after attention layers, with their rounding; or infinity."""
    arrays = stage.arrays
    W_Q, b_Q, W_K, W_V, W_O = (
        np.abs(arrays[name]) for name in ("W_Q", "b_Q", "W_K", "W_V", "W_O")
    )
    gain = np.abs(arrays["gain"]).max(axis=-1) if "gain" in arrays else np.ones(())
    carried = W_V.sum(axis=-1)  # [layers, h, m]
    constant = np.abs(arrays["b_V"]) if "b_V" in arrays else np.zeros_like(carried)

    def written(values: np.ndarray) -> np.ndarray:
        heads = np.einsum("lhdm,lhm->lhd", W_O, values) * gain[..., None]
        return heads.sum(axis=1).max(axis=-1) * (1 + SLACK)

    factors, added = written(carried), written(constant)
    shifts = _Shifts.of(stage)
    end = size
    for factor, more in zip(factors.tolist(), added.tolist(), strict=True):
        end = (end + factor * end + more) * (1 + 2.0**-40)
    if shifts is not None:
        end = min(end, shifts.reach(size, n))
    query = W_Q.sum(axis=-1).max() * end + b_Q.max()
    score = query * W_K.sum(axis=-1).max() * end * W_Q.shape[2]
    value = (carried.max() * end + constant.max()) * gain.max() * W_O.max()
    return end if score <= LIMIT and value <= LIMIT else float("inf")


@dataclass(frozen=True)
class _Shifts:
    """Layers of two heads that read s = v . z, and write opposite multiples of o.

    Attributes:
        v: W_V and W_Q, the same in all heads.
        o: What the layer with the largest W_O writes.
        amounts: |W_O| of each layer, in units of that.
        sharpness: The least |lambda|, with W_K = lambda v.
        widest: The largest |b_Q|.
    """

    v: np.ndarray
    o: np.ndarray
    amounts: np.ndarray
    sharpness: float
    widest: float

    @classmethod
    def of(cls, stage: StageWeights) -> "_Shifts | None":
        """The layers as such, or None if they are not."""
        W_Q, b_Q, W_K, W_V, W_O = (
            stage.arrays[name] for name in ("W_Q", "b_Q", "W_K", "W_V", "W_O")
        )
        gain, b_V = (stage.arrays.get(name, np.array(v)) for name, v in PLAIN)
        if W_Q.shape[1:3] != (2, 1) or (gain != 1).any() or b_V.any():
            return None
        v, first = W_V[0, 0, 0], W_O[:, 0, :, 0]  # [d], [layers, d]
        o = first[np.abs(first).max(axis=-1).argmax()]
        place, pivot = int(np.abs(v).argmax()), int(np.abs(o).argmax())
        if v[place] == 0 or o[pivot] == 0:
            return None
        lam, alpha = W_K[:, :, 0, place] / v[place], first[:, pivot] / o[pivot]
        same = (v == W_V).all() and (v == W_Q).all() and (W_O[:, 1] == -W_O[:, 0]).all()
        same = same and (lam[:, 0] == lam[:, 1]).all() and (lam != 0).all()
        same = same and (W_K[:, :, 0] == lam[..., None] * v).all()
        if not same or (first != alpha[:, None] * o).any():
            return None
        if np.abs(v @ o) < (np.abs(v) @ np.abs(o)) * SLACK:  # it may be 0, for all we know
            return None
        return cls(v, o, np.abs(alpha), float(np.abs(lam).min()), float(np.abs(b_Q).max()))

    def reach(self, size: float, n: int) -> float:
        """A bound on the state after all layers, for every input; or infinity.

        Let R be at least every |b_Q|. For |s| > 2 R both queries s - b have one sign, and a
        size of R or more. So both heads are near the largest s, or both near the least: in
        real arithmetic each is off by at most sum_k x_k exp(-lambda R x_k) <= n / (lambda
        R), x_k the distance of token k; twice that if exp is within a factor of 2. With T =
        |v| |z|, scores are rounded as if s was off by (d + 3) T 2^-53 in the keys, values
        and shares are off by (d + 1) T 2^-53 and (3 n + 20) T 2^-53. So a layer moves s by
        at most (4 n / (lambda R) + (8 d + 8 n + 64) T 2^-53) (|v . o| + 1). If all of that
        adds up to R at most, a token that was once beyond 3 R stays beyond 2 R. All others
        are at most 3 R, or leave: to 3 R + 2 |v . o| max |s|. Each of the n tokens leaves
        once. As all layers write multiples of o, z is known from s. R is tried in steps.
        """
        norm, widest = float(np.abs(self.v).sum()), float(np.abs(self.o).max())
        step, slack = abs(float(self.v @ self.o)) * (1 + SLACK), 1 + 4 * SLACK
        R = max(self.widest, UNDERFLOW)
        while R <= REACH:
            s = norm * size + 4 * R
            for _ in range(n):
                s = (4 * R + (1 + 2 * step) * s) * slack
            end = (size + widest * 2 * s / step * slack) * slack
            rounding = (8 * (len(self.v) + n) + 64) * 2.0**-53 * norm * end
            near = 4 * n / (self.sharpness * R) + rounding
            if float((self.amounts * step + 1).sum()) * near * slack <= R:
                return end
            R *= 16
        return float("inf")
