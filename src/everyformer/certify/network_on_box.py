"""A network of any weights on a small box: enclosures of all outputs, in Arb balls.

Every number t of the network, as a function of the input on a box with centre c and
half-widths h, is kept as a value at the centre and slopes about it:

    t(x) = t(c) + sum_l s_l (x_l - c_l),    for every x of the box some s_l in S_l,

so that t is in t(c) + sum_l S_l [-h_l, h_l], its *range*. The rules, one line each:

    linear        both are linear in (t(c), S)
    relu          relu(t) - relu(t_c) = q (t - t_c), q in [0, 1]; q = 1 if t >= 0 on the
                  box, 0 if t <= 0
    exp           exp(t) - exp(t_c) = exp(y) (t - t_c), with y in the range of t
    product       a b - a_c b_c = a (b - b_c) + (a - a_c) b_c
    quotient      a/b - a_c/b_c = ((a - a_c) - (a_c/b_c) (b - b_c)) / b

On a plateau of a quantiser slopes of 1 and -1 cancel and are exactly 0; from there on the
network is evaluated at a point. Softmax is that of the scores minus one of them. Hardmax
and the functions of Phi must be decided on the whole box; else nothing is said of it.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, Weights
from everyformer.numerics.balls import BallArithmetic

PRECISION = 192
"""Bits of a ball: ids and sharp scores lose some sixty of them by cancelling."""


@dataclass(frozen=True)
class Form:
    """Numbers of all tokens: matrices (tokens, width) of balls.

    Attributes:
        centre: Their values at the centre.
        slopes: For each input one that may move them; none for a constant.
    """

    centre: Any
    slopes: dict[int, Any]


class NetworkOnBoxes:
    """A network whose outputs are enclosed on boxes.

    Args:
        weights: The network.

    Raises:
        CertificateError: If python-flint is not installed.
    """

    def __init__(self, weights: Weights) -> None:
        self._balls = BallArithmetic(PRECISION)
        self._flint = importlib.import_module("flint")
        self._weights = weights
        self._zero = self._flint.arb(0)
        with self._balls.working():
            self._layers = list(self._prepared(weights))
            around = weights.registers
            self._read_in = None if around is None else self._matrix(around.W_in.T)
            self._read_out = None if around is None else self._matrix(around.W_out.T)

    def enclose(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds (n, d) of the network on [low, high], float64 (n, d).

        Raises:
            Undecided: If a step is not decided on the box.
        """
        with self._balls.working():
            reach = {}
            state = self._read(low, high, reach)
            for layer in self._layers:
                state = layer(state, reach)
            if self._read_out is not None:
                state = self._linear(state, self._read_out)
            first = 0 if self._weights.registers is None else self._prefix
            found = self._ranges(state, reach)
            n, d = low.shape
            ends = [
                [self._balls.ends(found[first + j, i]) for i in range(d)] for j in range(n)
            ]
        pairs = np.array(ends, dtype=np.float64)
        if not np.isfinite(pairs).all():
            raise Undecided("network", "an output has no bound on a box")
        return pairs[..., 0], pairs[..., 1]

    @property
    def _prefix(self) -> int:
        around = self._weights.registers
        return 0 if around is None or around.prefix is None else len(around.prefix)

    def _read(self, low: np.ndarray, high: np.ndarray, reach: dict[int, Any]) -> Form:
        """The input; `reach` is filled with [-h_l, h_l]."""
        arb, (n, d) = self._flint.arb, low.shape
        centre, slopes = self._zeros(n, d), {}
        for j, i in np.ndindex(n, d):
            a, b = arb(float(low[j, i])), arb(float(high[j, i]))
            centre[j, i] = (a + b) / 2
            slope = self._zeros(n, d)
            slope[j, i] = arb(1)
            slopes[j * d + i] = slope
            reach[j * d + i] = arb(0, ((b - a) / 2).upper())
        state, around = Form(centre, slopes), self._weights.registers
        if self._weights.positions is not None:
            return Form(centre + self._matrix(self._weights.positions), slopes)
        if around is None or self._read_in is None:
            return state
        state = self._linear(state, self._read_in)
        state = Form(state.centre + self._matrix(around.start), state.slopes)
        if around.prefix is None:
            return state
        nothing = np.zeros_like(around.prefix)
        return Form(
            self._below(self._matrix(around.prefix), state.centre),
            {k: self._below(self._matrix(nothing), s) for k, s in state.slopes.items()},
        )

    def _below(self, above: Any, under: Any) -> Any:
        """One matrix on top of another."""
        return self._flint.arb_mat([*above.tolist(), *under.tolist()])

    def _zeros(self, rows: int, columns: int) -> Any:
        return self._flint.arb_mat(rows, columns)

    def _matrix(self, array: np.ndarray) -> Any:
        rows = [[self._number(value) for value in row] for row in np.atleast_2d(array)]
        return self._flint.arb_mat(rows)

    def _number(self, value: Any) -> Any:
        if isinstance(value, float):
            return self._flint.arb(float(value))
        return self._balls.constant(Fraction(value))

    def _linear(self, form: Form, matrix: Any, bias: Any = None) -> Form:
        """form @ matrix + bias in every row."""
        centre = form.centre * matrix
        if bias is not None:
            centre = centre + self._repeated(bias, centre.nrows())
        slopes = {k: slope * matrix for k, slope in form.slopes.items()}
        return Form(centre, {k: s for k, s in slopes.items() if not _is_zero(s)})

    def _repeated(self, row: Any, count: int) -> Any:
        return self._flint.arb_mat([row.tolist()[0]] * count)

    def _ranges(self, form: Form, reach: dict[int, Any]) -> Any:
        found = form.centre
        for k, slope in form.slopes.items():
            found = found + slope * reach[k]
        return found

    def _prepared(
        self, weights: Weights
    ) -> Iterator[Callable[[Form, dict[int, Any]], Form]]:
        """Every layer as a function, its weights as balls."""
        for stage in weights.stages:
            for index in range(stage.layers):
                if stage.half == "attention":
                    yield self._attention(stage, index, softmax=weights.softmax)
                else:
                    yield self._feed_forward(stage, index)

    def _feed_forward(
        self, stage: StageWeights, index: int
    ) -> Callable[[Form, dict[int, Any]], Form]:
        own = stage.layer(index)
        W_1, W_2 = self._matrix(own["W_1"].T), self._matrix(own["W_2"].T)
        b_1, b_2 = self._matrix(own["b_1"]), self._matrix(own["b_2"])
        pieces = _Pieces(self._number, own, stage.name) if "phi.breaks" in own else None

        def run(x: Form, reach: dict[int, Any]) -> Form:
            t = self._linear(x, W_1, b_1)
            ranges = self._ranges(t, reach)
            centre, slopes = t.centre, dict(t.slopes)
            slopes = {k: self._flint.arb_mat(slope) for k, slope in slopes.items()}
            for j, i in np.ndindex(centre.nrows(), centre.ncols()):
                if pieces is None:
                    factor, centre[j, i] = self._relu(ranges[j, i], centre[j, i])
                else:
                    factor, added = pieces.at(i, ranges[j, i])
                    centre[j, i] = factor * centre[j, i] + added
                for slope in slopes.values():
                    slope[j, i] = slope[j, i] * factor
            return _sum(x, self._linear(Form(centre, slopes), W_2, b_2))

        return run

    def _relu(self, around: Any, centre: Any) -> tuple[Any, Any]:
        """q, and the value at the centre."""
        arb = self._flint.arb
        if around >= 0:
            return arb(1), centre
        if around <= 0:
            return self._zero, self._zero
        return arb(0.5, 0.5), centre.max(self._zero)

    def _attention(
        self, stage: StageWeights, index: int, *, softmax: bool
    ) -> Callable[[Form, dict[int, Any]], Form]:
        own = stage.layer(index)
        heads = [
            _Head(
                self._matrix(own["W_Q"][head].T),
                self._matrix(own["W_K"][head].T),
                self._matrix(own["W_V"][head].T),
                self._matrix(own["W_O"][head].T),
                -self._matrix(own["b_Q"][head]),
                self._matrix(own["b_V"][head]) if "b_V" in own else None,
                own["gain"][head] if "gain" in own else None,
            )
            for head in range(len(own["W_Q"]))
        ]
        mask, name = own.get("mask"), stage.name

        def run(x: Form, reach: dict[int, Any]) -> Form:
            total = x
            for head in heads:
                scores = self._scores(x, head, reach)
                shares = self._softmax if softmax else self._hardmax
                weights = shares(scores, mask, reach, name)
                value = self._linear(x, head.W_V, head.b_V)
                heard = self._product(self._gained(weights, head.gain), value, reach)
                total = _sum(total, self._linear(heard, head.W_O))
            return total

        return run

    def _scores(self, x: Form, head: "_Head", reach: dict[int, Any]) -> Form:
        query = self._linear(x, head.W_Q, head.minus_b_Q)
        key = self._linear(x, head.W_K)
        turned = Form(
            key.centre.transpose(), {k: s.transpose() for k, s in key.slopes.items()}
        )
        return self._product(query, turned, reach)

    def _product(self, a: Form, b: Form, reach: dict[int, Any]) -> Form:
        """The matrix product of two forms."""
        around, slopes = self._ranges(a, reach), {}
        for k in {**a.slopes, **b.slopes}:
            parts = [around * b.slopes[k]] if k in b.slopes else []
            parts += [a.slopes[k] * b.centre] if k in a.slopes else []
            slopes[k] = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return Form(
            a.centre * b.centre, {k: s for k, s in slopes.items() if not _is_zero(s)}
        )

    def _gained(self, weights: Form, gain: np.ndarray | None) -> Form:
        """Weights times C_jk = gain_{j-k}."""
        if gain is None:
            return weights
        n = weights.centre.nrows()
        for part in (weights.centre, *weights.slopes.values()):
            for j, k in np.ndindex(n, n):
                part[j, k] = part[j, k] * self._number(gain[j - k + n - 1])
        return weights

    def _softmax(
        self, scores: Form, mask: np.ndarray | None, reach: dict[int, Any], name: str
    ) -> Form:
        """e_k / (sum of e), e_k = exp(score_k - one of the scores), for every row."""
        n = scores.centre.nrows()
        centre, slopes = self._zeros(n, n), {k: self._zeros(n, n) for k in scores.slopes}
        for j in range(n):
            heard = [k for k in range(n) if mask is None or mask[j, k]]
            top = max(heard, key=lambda k: float(scores.centre[j, k].mid()))
            at, moved, around = {}, {}, self._flint.arb(0)
            for k in heard:
                gap = self._zero
                slope = dict.fromkeys(scores.slopes, self._zero)
                if k != top:
                    gap = scores.centre[j, k] - scores.centre[j, top]
                    slope = {m: s[j, k] - s[j, top] for m, s in scores.slopes.items()}
                reached = sum((s * reach[m] for m, s in slope.items()), start=gap)
                size = self._balls.exp(reached)
                at[k] = self._balls.exp(gap)
                moved[k] = {m: size * s for m, s in slope.items()}
                around = around + size  # at least 1: the term of `top` is exp(0)
            total = sum(at.values(), start=self._zero)
            for k in heard:
                centre[j, k] = at[k] / total
            for m, slope in slopes.items():
                whole = sum((moved[k][m] for k in heard), start=self._zero)
                for k in heard:
                    slope[j, k] = (moved[k][m] - centre[j, k] * whole) / around
        return Form(centre, {k: s for k, s in slopes.items() if not _is_zero(s)})

    def _hardmax(
        self, scores: Form, mask: np.ndarray | None, reach: dict[int, Any], name: str
    ) -> Form:
        """1 on the largest score, shared where scores are equal on the whole box.

        Raises:
            Undecided: If the box does not decide which is the largest.
        """
        n = scores.centre.nrows()
        centre, ranges = self._zeros(n, n), self._ranges(scores, reach)
        for j in range(n):
            heard = [k for k in range(n) if mask is None or mask[j, k]]
            top = max(heard, key=lambda k: float(scores.centre[j, k].mid()))
            ties = [k for k in heard if not ranges[j, k] < ranges[j, top]]
            for k in ties:
                same = [part[j, k] - part[j, top] for part in scores.slopes.values()]
                same.append(scores.centre[j, k] - scores.centre[j, top])
                if k != top and not all(one.is_zero() for one in same):
                    raise Undecided(name, "the largest score is not decided on a box")
                centre[j, k] = self._flint.arb(1) / len(ties)
        return Form(centre, {})


@dataclass(frozen=True)
class _Head:
    """One head, on rows."""

    W_Q: Any
    W_K: Any
    W_V: Any
    W_O: Any
    minus_b_Q: Any
    b_V: Any
    gain: np.ndarray | None


@dataclass(frozen=True)
class _Pieces:
    """The functions of Phi of one layer."""

    number: Callable[[Any], Any]
    own: dict[str, np.ndarray]
    name: str

    def at(self, unit: int, around: Any) -> tuple[Any, Any]:
        """Slope and intercept of the piece that holds on a range.

        Raises:
            Undecided: If there are several.
        """
        first, second = (self.number(v) for v in self.own["phi.breaks"][unit])
        left, right = self.own["phi.closed"][unit]
        after_first = around > first if left else around >= first
        up_to_second = around <= second if right else around < second
        if around <= first if left else around < first:
            piece = 0
        elif around > second if right else around >= second:
            piece = 2
        elif after_first and up_to_second:
            piece = 1
        else:
            raise Undecided(self.name, "a piece of Phi is not decided on a box")
        slope = self.own["phi.slopes"][unit][piece]
        return self.number(slope), self.number(self.own["phi.intercepts"][unit][piece])


def _sum(a: Form, b: Form) -> Form:
    slopes = dict(a.slopes)
    for k, slope in b.slopes.items():
        slopes[k] = slopes[k] + slope if k in slopes else slope
    return Form(a.centre + b.centre, {k: s for k, s in slopes.items() if not _is_zero(s)})


def _is_zero(matrix: Any) -> bool:
    """Whether every entry is 0, exactly."""
    return all(entry.is_zero() for entry in matrix.entries())
