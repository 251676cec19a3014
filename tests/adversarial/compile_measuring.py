"""How far a compiled network really is from f: every run that the hypotheses allow.

A float64 run may add in any order and use any exp within 4 ulp; `rough_run` takes orders
and errors at random. `Real` is the network in real arithmetic, in Arb balls. f is
computed in balls at the worst points, so that a distance is certain to the last digit.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

import everyformer as ef
from everyformer.model.stacks import AttentionStack, FeedForwardStack
from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.expression import Expression
from everyformer.targets.box import Box

POINTS, STEPS, REAL_POINTS = 192, (0.25, 0.03, 0.003), 3
PRECISION = 400
"""Bits of balls: real bounds of exact programs are below 1e-180."""

Run = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Distances:
    """The largest distances found; each is a lower bound of the truth.

    Attributes:
        real: Of the network in real arithmetic.
        run: Of a float64 run.
        way: Which run that was.
    """

    real: float
    run: float
    way: str


def _sums(products: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The sum over the last axis, one after the other in a random order."""
    order = rng.permutation(products.shape[-1])
    total = np.zeros(products.shape[:-1])
    for k in order:
        total = total + products[..., k]
    return total


def _product(x: np.ndarray, W: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """x W^T, each entry in an order of its own."""
    result = np.zeros((*x.shape[:-1], len(W)))
    for m, row in enumerate(W):
        used = np.flatnonzero(row)
        if len(used):
            result[..., m] = _sums(x[..., used] * row[used], rng)
    return result


def _exp(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """exp within 4 ulp, with exp(0) = 1; 3 and a bit of them are added at random."""
    value = np.where(t < -760, 0.0, np.exp(t))
    noise = rng.choice([-3.0, 0.0, 3.0], size=t.shape) * np.spacing(value)
    return np.where(t == 0, 1.0, np.maximum(value + noise, 0.0))


def rough_run(network: ef.Network, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A float64 run with orders and errors at random; x has shape (points, n, d)."""
    held = network.registers
    assert held is not None
    state = x @ held.W_in.T + held.start
    P = 0 if held.prefix is None else len(held.prefix)
    if held.prefix is not None:
        prefix = np.broadcast_to(held.prefix, (len(x), *held.prefix.shape))
        state = np.concatenate([prefix, state], axis=1)
    for stage in network.stages:
        own = stage.attention
        if own is not None:
            update = np.zeros_like(state)
            for h in rng.permutation(own.W_Q.shape[1]):
                query = _product(state, own.W_Q[0, h], rng) - own.b_Q[0, h]
                key = _product(state, own.W_K[0, h], rng)
                value = _product(state, own.W_V[0, h], rng)
                scores = _sums(query[:, :, None, :] * key[:, None, :, :], rng)
                weights = _exp(scores - scores.max(axis=-1, keepdims=True), rng)
                weights = weights / _sums(weights, rng)[..., None]
                mixed = weights[..., None, :] * np.swapaxes(value, 1, 2)[:, None]
                update = update + _product(_sums(mixed, rng), own.W_O[0, h], rng)
            state = state + update
        units = stage.feed_forward
        if units is not None:
            hidden = _product(state, units.W_1[0], rng) + units.b_1[0]
            update = _product(np.maximum(hidden, 0.0), units.W_2[0], rng)
            state = state + (update + units.b_2[0])
    return _product(state[:, P:], held.W_out, rng)


class Real:
    """A network in real arithmetic, as balls, one sequence at a time."""

    def __init__(self, network: ef.Network) -> None:
        assert network.registers is not None
        self.network, self.held = network, network.registers
        self.arithmetic = BallArithmetic(PRECISION)

    def ball(self, value: float) -> Any:
        return self.arithmetic.constant(Fraction(value))

    def sum(self, balls: Iterable[Any]) -> Any:
        return sum(balls, self.ball(0.0))

    def plus(self, row: list[Any], more: Iterable[Any]) -> list[Any]:
        return [a + b for a, b in zip(row, more, strict=True)]

    def product(self, row: list[Any], W: np.ndarray) -> list[Any]:
        return [
            self.sum(row[k] * self.ball(float(line[k])) for k in np.flatnonzero(line))
            for line in W
        ]

    def __call__(self, x: np.ndarray) -> list[list[Any]]:
        held = self.held
        with self.arithmetic.working():
            tokens = [[self.ball(v) for v in row] for row in x.tolist()]
            start = [[self.ball(v) for v in row] for row in held.start.tolist()]
            state = [
                self.plus(own, self.product(token, held.W_in))
                for own, token in zip(start, tokens, strict=True)
            ]
            P = 0 if held.prefix is None else len(held.prefix)
            if held.prefix is not None:
                state = [
                    [self.ball(v) for v in row] for row in held.prefix.tolist()
                ] + state
            for stage in self.network.stages:
                if stage.attention is not None:
                    state = self.attend(stage.attention, state)
                if stage.feed_forward is not None:
                    state = [self.feed(stage.feed_forward, row) for row in state]
            return [self.product(row, held.W_out) for row in state[P:]]

    def attend(self, own: AttentionStack, state: list[list[Any]]) -> list[list[Any]]:
        after = [list(row) for row in state]
        for h in range(own.W_Q.shape[1]):
            shift = [self.ball(-v) for v in own.b_Q[0, h].tolist()]
            keys = [self.product(row, own.W_K[0, h]) for row in state]
            values = [self.product(row, own.W_V[0, h]) for row in state]
            for j, row in enumerate(state):
                query = self.plus(self.product(row, own.W_Q[0, h]), shift)
                scores = [
                    self.sum(a * b for a, b in zip(query, key, strict=True)) for key in keys
                ]
                top = max(scores, key=lambda s: float(s.mid()))
                weights = [(s - top).exp() for s in scores]
                total = self.sum(weights)
                mixed = [
                    self.sum(w * v[c] for w, v in zip(weights, values, strict=True)) / total
                    for c in range(own.W_V.shape[2])
                ]
                after[j] = self.plus(after[j], self.product(mixed, own.W_O[0, h]))
        return after

    def feed(self, own: FeedForwardStack, row: list[Any]) -> list[Any]:
        shift = [self.ball(v) for v in own.b_1[0].tolist()]
        reads = self.plus(self.product(row, own.W_1[0]), shift)
        hidden = [one.max(self.ball(0.0)) for one in reads]
        added = self.plus(
            self.product(hidden, own.W_2[0]), map(self.ball, own.b_2[0].tolist())
        )
        return self.plus(row, added)


def exactly(f: Expression, x: np.ndarray) -> list[list[Any]]:
    """f at one point, as balls."""
    arithmetic = BallArithmetic(PRECISION)
    with arithmetic.working():
        return f.run(arithmetic, lambda j, i: arithmetic.constant(Fraction(float(x[j, i]))))


def gap(f: Expression, x: np.ndarray, result: list[list[Any]]) -> float:
    """A lower bound of max |f - result| at one point; nan counts as infinite."""
    largest = 0.0
    with BallArithmetic(PRECISION).working():
        for wanted, found in zip(exactly(f, x), result, strict=True):
            for a, b in zip(wanted, found, strict=True):
                if not b.is_finite():
                    return np.inf
                if a.is_finite():
                    largest = max(largest, _float_below((a - b).abs_lower()))
    return largest


def _float_below(ball: Any) -> float:
    return max(BallArithmetic.ends(ball)[0], 0.0)


def as_balls(result: np.ndarray) -> list[list[Any]]:
    arithmetic = BallArithmetic(PRECISION)
    if not np.isfinite(result).all():
        nan = arithmetic.box(np.inf, np.inf)
        return [[nan for _ in row] for row in result]
    return [[arithmetic.constant(Fraction(float(v))) for v in row] for row in result]


def _points(box: Box, n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Uniform, corners, near the lower ends, tokens near each other."""
    low, high = np.asarray(box.lows), np.asarray(box.highs)
    cube = rng.random((count, n, len(low)))
    part = count // 4
    cube[:part] = np.round(cube[:part])
    cube[part : 2 * part] **= 8
    near = cube[2 * part : 3 * part]
    near[:] = np.clip(near[:, :1] + 1e-2 * (near - 0.5), 0, 1)
    return np.clip(low + (high - low) * cube, low, high)


def runs_of(network: ef.Network, rng: np.random.Generator) -> Iterator[tuple[str, Run]]:
    """The library's own executors, torch, and rough runs."""
    free = replace(network, program=None)  # inputs beyond the program's own domain, too
    yield "reference", lambda x: np.asarray(free(x, executor="reference"))
    kind = int(rng.integers(0, 3))
    if kind == 0:
        yield "literal", lambda x: np.asarray(free(x, executor="literal"))
    elif kind == 1:
        import torch

        module = free.to_torch()
        yield "torch", lambda x: module(torch.from_numpy(x)).detach().numpy()
    for seed in range(2):
        own = np.random.default_rng([seed, int(rng.integers(0, 2**31))])
        yield "rough", lambda x, own=own: rough_run(free, x, own)


def measure(
    f: Expression, box: Box, network: ef.Network, rng: np.random.Generator
) -> Distances:
    """Search for points where the network is far from f."""
    n = f.seq_len
    low, high = np.asarray(box.lows), np.asarray(box.highs)
    best, way, worst_points = 0.0, "", list[np.ndarray]()
    with np.errstate(all="ignore"):
        x = _points(box, n, POINTS, rng)
        for name, run in runs_of(network, rng):
            at = _ascent(f, run, x, low, high)
            distance = gap(f, at, as_balls(run(at[None])[0]))
            if name == "rough":  # another order at the same point
                distance = max(distance, gap(f, at, as_balls(run(at[None])[0])))
            worst_points.append(at)
            if distance >= best:
                best, way = distance, name
        real, exact = 0.0, Real(network)
        for at in [*worst_points, x[0]][:REAL_POINTS]:
            real = max(real, gap(f, at, exact(at)))
    return Distances(real, best, way)


def _ascent(
    f: Expression, run: Run, x: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The worst of all points, and what single steps from there make of it."""

    def distances(points: np.ndarray) -> np.ndarray:
        found = np.abs(f(points) - run(points)).max(axis=(1, 2))
        return np.where(np.isnan(found), np.inf, found)

    found = distances(x)
    at, far = x[int(found.argmax())], float(found.max())
    for step in STEPS:
        moves = np.repeat(at[None], 2 * at.size, axis=0).reshape(2, at.size, *at.shape)
        for k in range(at.size):
            place = np.unravel_index(k, at.shape)
            width = (high - low)[place[1]] * step
            moves[0, k][place] += width
            moves[1, k][place] -= width
        moves = np.clip(moves.reshape(-1, *at.shape), low, high)
        found = distances(moves)
        if found.max() > far:
            at, far = moves[int(found.argmax())], float(found.max())
    return at
