"""Networks with registers that are taken apart and put together in other ways."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import numpy as np
from tests.plans import grid_plan

import everyformer as ef
from everyformer.certify.proof import Proof
from everyformer.certify.prove import cells_of, prove
from everyformer.certify.weights import RegisterWeights as Held
from everyformer.certify.weights import StageWeights, Weights
from everyformer.construct.averaging.layers import Variant
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.network import Network
from everyformer.model.registers import Registers
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.targets.target import Target

Half = Literal["attention", "feed_forward"]


def with_positions(x: np.ndarray) -> np.ndarray:
    j = np.arange(x.shape[-2])[:, None]
    return np.sin(3 * x + j) * x.mean(axis=(-2, -1), keepdims=True) + x**2 / 2


def symmetric(x: np.ndarray) -> np.ndarray:
    return np.sin(3 * x) * x.mean(axis=(-2, -1), keepdims=True) + x**2 / 2


@dataclass
class Part:
    """A stage: layers of one half, by the names of their arrays, stacked."""

    half: Half
    arrays: dict[str, np.ndarray]

    @property
    def layers(self) -> int:
        return len(next(iter(self.arrays.values())))

    def copy(self) -> "Part":
        return Part(self.half, {name: a.copy() for name, a in self.arrays.items()})


@dataclass
class Draft:
    """What a network with registers is made of, to be changed in place."""

    W_in: np.ndarray
    start: np.ndarray
    W_out: np.ndarray
    parts: list[Part]

    @classmethod
    def of(cls, network: Network) -> "Draft":
        held = network.registers
        assert held is not None
        parts: list[Part] = []
        for stage in network.stages:
            for half in ("attention", "feed_forward"):
                own = {
                    name.removeprefix(f"{half}."): array.copy()
                    for name, array in stage.arrays()
                    if name.startswith(f"{half}.")
                }
                if own:
                    parts.append(Part(half, own))
        return cls(held.W_in.copy(), held.start.copy(), held.W_out.copy(), parts)

    def copy(self) -> "Draft":
        copies = [part.copy() for part in self.parts]
        return Draft(self.W_in.copy(), self.start.copy(), self.W_out.copy(), copies)

    @property
    def width(self) -> int:
        return len(self.W_in)

    def layers_before_attention(self) -> list[Part]:
        halves = [part.half for part in self.parts]
        count = halves.index("attention") if "attention" in halves else len(halves)
        return self.parts[:count]

    def add_register(self, start: float | np.ndarray = 0.0) -> int:
        """One more register, which nothing reads or writes; its number."""

        def wider(array: np.ndarray, axis: int) -> np.ndarray:
            shape = list(array.shape)
            shape[axis] = 1
            return np.concatenate([array, np.zeros(shape)], axis=axis)

        self.W_in, self.W_out = wider(self.W_in, 0), wider(self.W_out, 1)
        self.start = wider(self.start, 1)
        self.start[:, -1] = start
        for part in self.parts:
            axes = {"W_Q": 3, "W_K": 3, "W_V": 3, "W_O": 2}
            if part.half == "feed_forward":
                axes = {"W_1": 2, "W_2": 1, "b_2": 1}
            for name, axis in axes.items():
                part.arrays[name] = wider(part.arrays[name], axis)
        return self.width - 1

    def feed_forward(self, units: int = 1, layers: int = 1) -> Part:
        """Layers that do nothing."""
        w, shape = self.width, (layers, units)
        return Part(
            "feed_forward",
            {
                "W_1": np.zeros((*shape, w)),
                "b_1": np.zeros(shape),
                "W_2": np.zeros((layers, w, units)),
                "b_2": np.zeros((layers, w)),
            },
        )

    def constant(self, register: int, value: float, at: int = 0) -> None:
        """One more stage, which adds a constant to a register."""
        part = self.feed_forward()
        part.arrays["b_2"][0, register] = value
        self.parts.insert(at, part)

    def network(self) -> Network:
        stages: list[Stage] = []
        for number, part in enumerate(self.parts):
            name = f"stage {number + 1}"
            if part.half == "attention":
                stages.append(Stage(name, "", attention=AttentionStack(**part.arrays)))
            else:
                layer = FeedForwardStack(**part.arrays, phi=None)
                stages.append(Stage(name, "", feed_forward=layer))
        heads = [p.arrays["W_Q"].shape for p in self.parts if p.half == "attention"]
        units = [p.arrays["W_1"].shape for p in self.parts if p.half == "feed_forward"]
        n, d = len(self.start), self.W_in.shape[1]
        h, m = max((s[1:3] for s in heads), default=(1, 1))
        r = max((s[1] for s in units), default=1)
        spec = ArchitectureSpec(
            n, d, h, m, r, "softmax", "relu", positional=False, width=self.width
        )
        held = Registers(self.W_in, self.start, self.W_out)
        return Network(spec, tuple(stages), registers=held)

    def weights(self) -> Weights:
        """As the prover would read them from a file."""
        stages = tuple(
            StageWeights(f"stage {k + 1}", part.half, part.arrays)
            for k, part in enumerate(self.parts)
        )
        held = Held(self.W_in, self.start, self.W_out, None)
        n, d = len(self.start), self.W_in.shape[1]
        return Weights(n, d, True, None, stages, False, "", held)


def exactly(draft: Draft, x: np.ndarray) -> np.ndarray | None:
    """The draft in exact arithmetic, rounded at the end; None where softmax is no mean.

    Numbers are Python ints over one power of two, and over n once for each mean.
    """
    n = x.shape[-2]
    z, bits = _whole(x)
    means = 0

    def times(matrix: np.ndarray, vector: np.ndarray) -> tuple[np.ndarray, int]:
        whole, more = _whole(matrix)
        return vector @ np.swapaxes(whole, -1, -2), bits + more

    def plus(a: tuple[np.ndarray, int], b: tuple[np.ndarray, int]) -> tuple[Any, int]:
        most = max(a[1], b[1])
        return a[0] * 2 ** (most - a[1]) + b[0] * 2 ** (most - b[1]), most

    def scaled(array: np.ndarray) -> tuple[np.ndarray, int]:
        whole, places = _whole(array)
        return whole * n**means, places

    z, bits = plus(times(draft.W_in, z), scaled(draft.start))
    for part in draft.parts:
        for layer in range(part.layers):
            a = {name: array[layer] for name, array in part.arrays.items()}
            if part.half == "feed_forward":
                hidden, places = plus(times(a["W_1"], z), scaled(a["b_1"]))
                hidden = np.where(hidden > 0, hidden, 0)
                W_2, more = _whole(a["W_2"])
                update = plus((hidden @ W_2.T, places + more), scaled(a["b_2"]))
                z, bits = plus((z, bits), update)
                continue
            total = (np.zeros_like(z), 0)
            for h in range(len(a["W_O"])):
                if not a["W_O"][h].any():
                    continue
                still = not a["W_Q"][h].any() and not a["b_Q"][h].any()
                if a["W_K"][h].any() and not still:
                    return None
                values, places = times(a["W_V"][h], z)
                W_O, more = _whole(a["W_O"][h])
                seen = values.sum(axis=-2, keepdims=True) @ W_O.T
                total = plus(total, (seen + np.zeros_like(z), places + more))
            z, bits = plus((z * n, bits), total)
            means += 1
    out, bits = times(draft.W_out, z)
    unit = 2**bits * n**means
    flat = [float(Fraction(int(v), unit)) for v in out.reshape(-1)]
    return np.array(flat).reshape(out.shape)


def _whole(array: np.ndarray) -> tuple[np.ndarray, int]:
    """float64 numbers as ints over 2^bits."""
    pairs = [float(v).as_integer_ratio() for v in array.reshape(-1)]
    bits = max((q.bit_length() - 1 for _, q in pairs), default=0)
    result = np.empty(len(pairs), dtype=object)
    result[:] = [p << (bits - q.bit_length() + 1) for p, q in pairs]
    return result.reshape(array.shape), bits


@cache
def built(variant: Variant = "wide", n: int = 2, d: int = 1, grid: int = 8) -> ef.Built:
    target = Target(with_positions, n, d)
    return ef.construct(target, grid=grid, method=ef.Averaging(variant=variant))


@cache
def built_equivariant(n: int = 2, d: int = 1, grid: int = 4) -> ef.Built:
    target = Target(symmetric, n, d)
    return ef.construct(target, grid=grid, method="averaging")


def proof_of(draft: Draft, origin: ef.Built) -> Proof:
    """What is proved of the draft and the function that the origin was built for."""
    weights, grid = draft.weights(), grid_plan(origin.plan).shape
    known = origin.target.expression
    assert known is not None
    cells = cells_of(weights, grid.box, grid.cells, known, equivariant=False)
    return prove(weights, cells, known, Fraction(2))


def points(origin: ef.Built, each: int, seed: int = 0) -> np.ndarray:
    """The same number of random points in every cell."""
    grid = grid_plan(origin.plan).shape
    columns = grid.all_sequences()
    centres = np.repeat(grid.centres(columns), each, axis=0)
    widths = np.array([float(w) for w in grid.box.widths]) / grid.cells
    return centres + (np.random.default_rng(seed).random(centres.shape) - 0.5) * widths


def distance(f: Callable[[Any], Any], g: Callable[[Any], Any], x: np.ndarray) -> float:
    """d_2(f, g) on the unit cube, sampled."""
    gap = np.abs(np.asarray(f(x)) - np.asarray(g(x)).astype(np.float64)) ** 2
    return float(gap.sum(axis=(1, 2)).mean() ** 0.5)
