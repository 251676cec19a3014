"""A softmax partition of unity: two attention layers, with anchors as prefix tokens.

N = n d entries, z = vec(X) in unit coordinates, z_k with k = i + dj for coordinate i of
token j. Anchors v lie on the lattice {-mh, .., 0, h, .., 1 + mh}^N, h = 1/K, and

    g(z) = sum_v f(v) e^(-beta |z-v|^2) / sum_v e^(-beta |z-v|^2),     beta = D / h^2.

Registers: x (d), pos (n, one-hot), slot (N), z (N), key (N), nrm, F (N). Data token j
holds x = x_j, pos = e_j, nrm = B / beta; the prefix token of anchor v holds key = v,
nrm = |v|^2, F = vec f(v). With docs/constructions/partition.md:

    slots      slot_k = ReLU(x_i + pos_j - 1): token j has its entries in its own slots
    sum        z = (n + P) mean of slots: every token holds all of z
    average    scores 2 beta z.key - beta nrm, values F, added to F: data tokens hold
               F = G = g(z)
    select     x_i += y_i = sum_j ReLU(G_k + R + 2R (pos_j - 1)) - ReLU(R + 2R (pos_j - 1))
    read out   x_i - sum_j slot_k, which is y_i: a token's slots hold its own x_i and zeros

Prefix tokens are the setting of prefix tuning (arXiv 2402.14753).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from everyformer.certify.partition.lattice import Lattice
from everyformer.construct.staircase import Layout, Units
from everyformer.model.registers import Registers
from everyformer.model.stacks import AttentionStack, Stage

SOURCE = "everyformer, docs/constructions/partition.md"

ROOM = 1 + 2.0**-10
"""R is so much larger than max|F|: more than the rounding of an average."""


@dataclass(frozen=True)
class Anchored:
    """The registers of a lattice of anchors.

    Attributes:
        lattice: The points and D.
    """

    lattice: Lattice

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.lattice.grid.seq_len

    @property
    def d(self) -> int:
        """Width of a token."""
        return self.lattice.grid.d_model

    @property
    def N(self) -> int:
        """Entries of a sequence."""
        return self.lattice.size

    @property
    def beta(self) -> float:
        """D / h^2."""
        return float(self.lattice.D * self.lattice.grid.cells**2)

    @property
    def far(self) -> float:
        """B / beta: with it as nrm a data token has the score -B."""
        return float(self.lattice.suppression) / self.beta

    @cached_property
    def layout(self) -> Layout:
        """d + n + 4N + 1 registers: a prefix token stores as many numbers."""
        return Layout(
            (
                *self._names("x", self.d),
                *self._names("pos", self.n),
                *self._names("slot", self.N),
                *self._names("z", self.N),
                *self._names("key", self.N),
                "nrm",
                *self._names("F", self.N),
            )
        )

    @staticmethod
    def _names(kind: str, count: int) -> tuple[str, ...]:
        return tuple(f"{kind}{k}" for k in range(count))

    def rows(self, kind: str, count: int | None = None) -> np.ndarray:
        """Unit vectors of the registers of a kind, as rows; N of them by default."""
        return self.layout.rows(*self._names(kind, self.N if count is None else count))

    @cached_property
    def anchors(self) -> np.ndarray:
        """v in unit coordinates, shape (P, N), entry 0 slowest."""
        K, m = self.lattice.grid.cells, self.lattice.margin
        axis = np.array([k / K for k in range(-m, K + m + 1)])
        return _product([axis] * self.N)

    def points(self, *, clipped: bool = False) -> np.ndarray:
        """v where f is evaluated, shape (P, n, d); with the margin clipped to the box."""
        lattice, box = self.lattice, self.lattice.grid.box
        K, m = lattice.grid.cells, lattice.margin
        numbers = [min(max(k, 0), K) if clipped else k for k in range(-m, K + m + 1)]
        axes = [
            np.array([float(Fraction(low) + k * width / K) for k in numbers])
            for low, width in zip(box.lows, box.widths, strict=True)
        ]
        return _product(axes * self.n).reshape(-1, self.n, self.d)


def _product(axes: list[np.ndarray]) -> np.ndarray:
    grids = np.meshgrid(*axes, indexing="ij")
    return np.stack([grid.ravel() for grid in grids], axis=-1)


def read_in_out(a: Anchored, values: np.ndarray) -> Registers:
    """Data tokens and prefix tokens; the result is x less what x held at first.

    Args:
        a: The lattice.
        values: f at the anchors, shape (P, n, d).
    """
    layout, box = a.layout, a.lattice.grid.box
    W_in = np.zeros((layout.width, a.d))
    start = np.zeros((a.n, layout.width))
    for i, (low, width) in enumerate(zip(box.lows, box.widths, strict=True)):
        W_in[i, i] = float(1 / width)
        start[:, i] = float(-Fraction(low) / width)
    start += a.rows("pos", a.n) + layout.vector(nrm=a.far)
    squares = np.square(a.anchors).sum(axis=-1, keepdims=True)
    prefix = (
        a.anchors @ a.rows("key")
        + squares * layout.vector(nrm=1)
        + values.reshape(-1, a.N) @ a.rows("F")
    )
    W_out = a.rows("x", a.d)
    for k, slot in enumerate(a.rows("slot")):
        W_out[k % a.d] -= slot
    return Registers(W_in, start, W_out, prefix)


def slots(a: Anchored) -> Units:
    """Step 1: ReLU(x_i + pos_j - 1) into slot_{i+dj}; N hidden units.

    x_i is in [0, 1]: the unit is x_i on token j and 0 on all others. Prefix tokens have
    pos = 0 and x = 0, and write nothing.
    """
    entry = np.arange(a.N)
    return Units(
        W_1=a.rows("x", a.d)[entry % a.d] + a.rows("pos", a.n)[entry // a.d],
        b_1=np.full(a.N, -1.0),
        W_2=a.rows("slot"),
        b_2=np.zeros(a.layout.width),
    )


def slot_sum(a: Anchored) -> AttentionStack:
    """Step 2: W_Q = W_K = 0, W_V reads slots, W_O writes (n + P) times the mean into z."""
    nothing = np.zeros((1, 1, a.N, a.layout.width))
    tokens = float(a.n + a.lattice.anchors)
    return AttentionStack(
        W_Q=nothing,
        b_Q=np.zeros((1, 1, a.N)),
        W_K=nothing,
        W_V=a.rows("slot")[None, None],
        W_O=(tokens * a.rows("z").T)[None, None],
    )


def average(a: Anchored) -> AttentionStack:
    """Step 3: one head, query (z, 1), key (2 beta key, -beta nrm), value F, written to F.

    The 1 is the bias of the query. The score of an anchor is 2 beta z.v - beta |v|^2 =
    beta |z|^2 - beta |z-v|^2, and beta |z|^2 cancels. A data token has -B: with
    B = 800 + D N / 4 it is 800 below the best anchor. F is 0 on data tokens: what is added
    there is G.
    """
    layout = a.layout
    nothing = np.zeros((1, layout.width))
    key = np.concatenate([2 * a.beta * a.rows("key"), layout.vector(nrm=-a.beta)[None]])
    W_V = np.concatenate([a.rows("F"), nothing])
    W_O = W_V.T
    one = np.zeros((1, 1, a.N + 1))
    one[..., -1] = -1.0
    return AttentionStack(
        W_Q=np.concatenate([a.rows("z"), nothing])[None, None],
        b_Q=one,
        W_K=key[None, None],
        W_V=W_V[None, None],
        W_O=W_O[None, None],
    )


def select(a: Anchored, largest: float) -> Units:
    """Step 4: token j keeps the entries G_{i+dj}, in F, that are its own; 2N hidden units.

    With R >= max|F| >= |G|: on token j the pair is (G + R) - R, on others 0 - 0.

    Args:
        a: The lattice.
        largest: max|F|.
    """
    R = largest * ROOM or 1.0
    entry = np.arange(a.N)
    own = 2 * R * a.rows("pos", a.n)[entry // a.d]
    out = a.rows("x", a.d)[entry % a.d]
    return Units(
        W_1=np.concatenate([a.rows("F") + own, own]),
        b_1=np.full(2 * a.N, -R),
        W_2=np.concatenate([out, -out]),
        b_2=np.zeros(a.layout.width),
    )


def partition_stages(a: Anchored, values: np.ndarray) -> Iterator[Stage]:
    """The three blocks: slots; sum; average and select."""
    largest = float(np.abs(values).max(initial=0.0))
    yield Stage("slots", SOURCE, feed_forward=slots(a).layers())
    yield Stage("sum", SOURCE, attention=slot_sum(a))
    yield Stage(
        "average and select",
        SOURCE,
        attention=average(a),
        feed_forward=select(a, largest).layers(),
    )
