"""Softmax over prefix tokens: the one head that writes, and its scores.

With u the input in unit coordinates, the score of data token j with prefix token v is

    s_jv = sum_k u_k lambda_jvk + mu_jv,

(lambda, mu) from the weights. They are compared with beta (2 u.v - |v|^2), v on a lattice.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.partition.affine import Affine
from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.lattice_constants import lattice_constants
from everyformer.certify.register_stages import OUTWARD
from everyformer.certify.rounding import UNIT_ROUNDOFF, gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, to_fractions
from everyformer.errors import CertificateError
from everyformer.targets.box import Grid

DENOMINATOR = 2**20
"""D is taken as a rational with a denominator up to this; the difference goes into eta."""

Slack = tuple[np.ndarray, np.ndarray]
"""Numbers as float64 computes them, and bounds on how far they are."""


@dataclass(frozen=True)
class Head:
    """The one head of the second attention layer that writes anything.

    Attributes:
        stage: For messages.
        W_Q: Shape (m, w).
        b_Q: Shape (m,).
        W_K: Shape (m, w).
        W_V: Shape (m, w).
        W_O: Shape (w, m).
        prefix: Tokens before the sequence, (P, w), in registers that attention leaves.
    """

    stage: str
    W_Q: np.ndarray
    b_Q: np.ndarray
    W_K: np.ndarray
    W_V: np.ndarray
    W_O: np.ndarray
    prefix: np.ndarray

    @classmethod
    def of(cls, stage: StageWeights, prefix: np.ndarray, written: np.ndarray) -> "Head":
        """Read it off a stage.

        Args:
            stage: The attention stage.
            prefix: Tokens before the sequence, as they were read in.
            written: Which of their registers hold something else by now.

        Raises:
            Undecided: If there is not one such head, or it reads one of those registers.
        """
        arrays = stage.layer(0)
        writing = [h for h, W_O in enumerate(arrays["W_O"]) if W_O.any()]
        if stage.layers != 1 or len(writing) != 1:
            why = f"it has {stage.layers} layers and {len(writing)} heads that write"
            raise Undecided(stage.name, f"{why}, not one of each")
        if {"gain", "b_V", "mask"} & set(arrays):
            why = "attention has a gain, a bias of the value, or a mask"
            raise Undecided(stage.name, why)
        own = {k: arrays[k][writing[0]] for k in ("W_Q", "b_Q", "W_K", "W_V", "W_O")}
        head = cls(stage=stage.name, prefix=prefix, **own)
        if (head.W_K[:, written] != 0).any() or (head.W_V[:, written] != 0).any():
            why = "keys or values read what the mean wrote into tokens before the sequence"
            raise Undecided(stage.name, why)
        return head

    @property
    def nothing(self) -> np.ndarray:
        """A bias of 0 for every register."""
        return np.zeros(len(self.W_O))

    def keys(self) -> Slack:
        """W_K of the prefix tokens, (P, m)."""
        return product(self.prefix, np.zeros_like(self.prefix), self.W_K)

    def values(self) -> Slack:
        """W_O W_V of the prefix tokens, in the registers that are written, (P, r)."""
        values = product(self.prefix, np.zeros_like(self.prefix), self.W_V)
        return product(*values, self.W_O[self.writes])

    def gross(self) -> Fraction:
        """The largest sum of sizes in a value of a prefix token."""
        sizes = np.abs(self.prefix) @ np.abs(self.W_V).T @ np.abs(self.W_O[self.writes]).T
        return Fraction(float(sizes.max(initial=0.0)) * OUTWARD)

    @property
    def writes(self) -> np.ndarray:
        """Registers that the layer writes."""
        return np.flatnonzero(self.W_O.any(axis=1))


def product(numbers: np.ndarray, slack: np.ndarray, matrix: np.ndarray) -> Slack:
    """numbers @ matrix.T in float64, and how far that is from the exact product.

    Nothing rounds where a row of the matrix is a single 1. A matrix of rationals is rounded
    first.
    """
    rounded = matrix.astype(np.float64)
    lost = np.zeros(matrix.shape)
    if matrix.dtype == object:
        lost = np.abs(to_fractions(rounded) - matrix).astype(np.float64) * OUTWARD
    terms = (rounded != 0).sum(axis=1)
    picks = (terms <= 1) & ((rounded == 0) | (rounded == 1)).all(axis=1)
    rounds = [
        0.0 if pick else float(gamma(int(k))) for k, pick in zip(terms, picks, strict=True)
    ]
    size = np.abs(rounded).T
    off = (np.abs(numbers) @ size) * rounds + slack @ size + np.abs(numbers) @ lost.T
    return numbers @ rounded.T, off * OUTWARD


@dataclass(frozen=True)
class Scores:
    """Scores of data tokens with prefix tokens, and with each other.

    Attributes:
        stage: For messages.
        query: (z, one) of every data token, as affine functions.
        slopes: lambda_jvk, the coefficient of u_k in the score, (n, P, N), and its slack.
        constants: mu_jv, (n, P), and its slack.
        keys: (P, m), and its slack.
        own_keys: Keys of the data tokens.
    """

    stage: str
    query: Affine
    slopes: Slack
    constants: Slack
    keys: Slack
    own_keys: Affine

    @classmethod
    def of(cls, head: Head, state: Affine, grid: Grid) -> "Scores":
        """The scores of a head, for data tokens in a given state."""
        query = state.mapped(head.W_Q, -head.b_Q)
        keys, slack = head.keys()
        widths = np.array(grid.box.widths * grid.seq_len, dtype=object)
        lows = np.array([Fraction(a) for a in grid.box.lows] * grid.seq_len, dtype=object)
        slopes, constants = [], []
        for j in range(grid.seq_len):
            of_unit = (query.slopes[j] * widths).T  # [N, m]
            shift = query.constants[j] + query.slopes[j] @ lows  # [m]
            slopes.append(product(keys, slack, of_unit))
            constants.append(product(keys, slack, shift[None]))
        return cls(
            head.stage,
            query,
            (np.stack([a for a, _ in slopes]), np.stack([b for _, b in slopes])),
            (
                np.stack([a[:, 0] for a, _ in constants]),
                np.stack([b[:, 0] for _, b in constants]),
            ),
            (keys, slack),
            state.mapped(head.W_K, np.zeros(len(head.W_K))),
        )

    def lattice(self, grid: Grid) -> tuple[Lattice, np.ndarray]:
        """The lattice that the keys are near, and the prefix tokens in its order.

        Raises:
            Undecided: If they are near none.
        """
        found = self.slopes[0][0]  # [P, N]
        P, N = found.shape
        side = round(P ** (1 / N))
        margin, odd = divmod(side - 1 - grid.cells, 2)
        if side**N != P or odd or margin < 1:
            why = f"{P} tokens before the sequence are not a lattice with K = {grid.cells}"
            raise Undecided(self.stage, why)
        spread = float((found.max(axis=0) - found.min(axis=0)).max())
        reach = 1 + Fraction(2 * margin, grid.cells)
        beta = Fraction(spread) / (2 * reach)
        if beta <= 0:
            raise Undecided(self.stage, "scores do not depend on the input")
        D = (beta / grid.cells**2).limit_denominator(DENOMINATOR)
        if D <= 0:
            raise Undecided(self.stage, f"scores are too small for K = {grid.cells}")
        numbers = np.rint(found / float(2 * beta) * grid.cells) + margin
        inside = (numbers >= 0) & (numbers < side)
        places = np.where(inside, numbers, 0).astype(np.int64) @ side ** np.arange(N)[::-1]
        order = np.full(P, -1)
        order[places] = np.arange(P)
        if not inside.all() or (order < 0).any():
            missing = int(np.argmax(order < 0))
            why = "two tokens before the sequence have the same key, or one is beyond"
            raise Undecided(self.stage, f"{why}; anchor {missing} of {P} has none")
        try:
            lattice_constants(D, margin)
        except CertificateError as error:
            raise Undecided(self.stage, str(error)) from None
        return Lattice(grid, D, margin), order

    def eta(self, lattice: Lattice, order: np.ndarray) -> Fraction:
        """How far scores are from beta (2 u.v - |v|^2), for u in the unit cube."""
        K, m, N = lattice.grid.cells, lattice.margin, lattice.size
        whole = np.indices((K + 1 + 2 * m,) * N).reshape(N, -1).T - m  # K v, integers
        beta = lattice.D * K * K
        ideal = whole * float(2 * beta / K)
        squares = np.square(whole).sum(axis=1) * float(lattice.D)
        slopes, slack = (part[:, order] for part in self.slopes)
        constants, more = (part[:, order] for part in self.constants)
        gaps = np.abs(slopes - ideal) + slack + np.abs(ideal) * 2.0**-52
        total = gaps.sum(axis=-1) + np.abs(constants + squares) + more + squares * 2.0**-52
        missed = self._through_keys(self.query.radius)
        return Fraction(float(total.max()) * OUTWARD) + missed

    def _through_keys(self, off: np.ndarray) -> Fraction:
        """What queries that are off by so much do to scores."""
        keys, slack = self.keys
        largest = to_fractions((np.abs(keys) + slack).max(axis=0))
        return max((off @ largest).flat)

    def of_data(self) -> Fraction:
        """No data token has a score above this with another."""
        low, high = self.query.ends()
        left, right = self.own_keys.ends()
        corners = [a[:, None] * b for a in (low, high) for b in (left, right)]
        return max(np.maximum.reduce(corners).sum(axis=-1).flat)

    def rounding(self) -> Fraction:
        """How far scores less their maximum are in float64 from those of the weights.

        Queries are off by their error and keys by their slack; a score has m products and
        sums, and its difference with the maximum is rounded once.
        """
        keys, slack = self.keys
        sizes = self.query.sizes().astype(np.float64) * OUTWARD  # [n, m]
        seen = float(((np.abs(keys) + slack) @ sizes.T).max()) * OUTWARD
        own = max((self.own_keys.sizes() @ self.query.sizes().T).flat)
        keyed = Fraction(float((slack @ sizes.T).max()) * OUTWARD)
        rounds = gamma(keys.shape[1]) + 2 * UNIT_ROUNDOFF
        missed = self._through_keys(self.query.error)
        return missed + keyed + rounds * (Fraction(seen) + own)
