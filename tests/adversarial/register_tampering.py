"""Structural tampering of averaging networks, case by case from a seed.

A case is a built network after a few random changes: stages, registers and units are added,
moved, split, merged and scaled. Some keep the function, some do not. What is proved of the
result is held against the result itself, run in exact rationals and in float64.

    python -m tests.adversarial.register_tampering --cases 1000 --seed 0
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tests.adversarial.register_drafts import (
    Draft,
    Part,
    built,
    built_equivariant,
    distance,
    exactly,
    points,
    proof_of,
)

import everyformer as ef

Change = Callable[[Draft, np.random.Generator], None]

COEFFICIENTS = (1e-6, -1e-6, 2.0**-20, 0.25, -0.5, 1.0, -1.0, 3.0)
CONSTANTS = (0.3, -0.3, 0.25, 1.0, -1.0, 2.0**-30, 1e-9, 17.0, 2.0**20, 2.0**50)


def _some_layers(draft: Draft, rng: np.random.Generator) -> Part:
    """Layers of the draft, more often those before attention."""
    early = [part for part in draft.parts if part.half == "feed_forward"]
    before = draft.layers_before_attention()
    return (
        early[rng.integers(len(early))]
        if rng.random() < 0.4 or not before
        else (before[rng.integers(len(before))])
    )


def _some_register(draft: Draft, rng: np.random.Generator) -> int:
    """An old register, or a new one that begins with 0, a constant or the position."""
    if rng.random() < 0.5:
        return int(rng.integers(draft.width))
    n = len(draft.start)
    return draft.add_register([0.0, 0.3, np.arange(n) * 1.0][rng.integers(3)])


def _place(draft: Draft, rng: np.random.Generator) -> int:
    return int(rng.integers(len(draft.parts) + 1))


def read_more(draft: Draft, rng: np.random.Generator) -> None:
    """All units of some layers, or half of them, read one more register."""
    register, part = _some_register(draft, rng), _some_layers(draft, rng)
    W_1 = part.arrays["W_1"]
    factor = rng.choice(COEFFICIENTS) * np.abs(W_1).max()
    chosen = np.ones(W_1.shape[:2], bool)
    if rng.random() < 0.3:
        chosen = rng.random(W_1.shape[:2]) < 0.5
    W_1[chosen, register] += factor


def add_constant(draft: Draft, rng: np.random.Generator) -> None:
    """One more stage that adds a constant."""
    register = _some_register(draft, rng)
    draft.constant(register, float(rng.choice(CONSTANTS)), _place(draft, rng))


def detour(draft: Draft, rng: np.random.Generator) -> None:
    """A constant on a new register that rows read and their biases take back."""
    part, register = _some_layers(draft, rng), draft.add_register()
    value, factor = float(rng.choice(CONSTANTS)), float(rng.choice([1.0, 0.5, -2.0, 1e-3]))
    at = next(k for k, own in enumerate(draft.parts) if own is part)
    part.arrays["W_1"][..., register] = factor * np.abs(part.arrays["W_1"]).max()
    if rng.random() < 0.7:
        part.arrays["b_1"] -= part.arrays["W_1"][..., register] * value
    draft.constant(register, value, int(rng.integers(at + 1)))


def there_and_back(draft: Draft, rng: np.random.Generator) -> None:
    """b_2 of layers that cancel over a stage, or over two stages."""
    register, value = _some_register(draft, rng), float(rng.choice(CONSTANTS))
    part = _some_layers(draft, rng)
    if part.layers > 1 and rng.random() < 0.7:
        first, second = rng.choice(part.layers, 2, replace=False)
        part.arrays["b_2"][first, register] += value
        part.arrays["b_2"][second, register] -= value
        return
    first, second = sorted((_place(draft, rng), _place(draft, rng)))
    draft.constant(register, -value, second)
    draft.constant(register, value, first)


def swap_stages(draft: Draft, rng: np.random.Generator) -> None:
    """Two stages change places."""
    first, second = rng.integers(len(draft.parts), size=2)
    parts = draft.parts
    parts[first], parts[second] = parts[second], parts[first]


def repeat_stage(draft: Draft, rng: np.random.Generator) -> None:
    """A stage stands twice."""
    part = draft.parts[rng.integers(len(draft.parts))]
    draft.parts.insert(_place(draft, rng), part.copy())


def split_stage(draft: Draft, rng: np.random.Generator) -> None:
    """The units of a layer, in two stages or two layers."""
    part = _some_layers(draft, rng)
    if part.layers > 1:
        return
    chosen = rng.random(part.arrays["b_1"].shape[1]) < 0.5
    halves = [part.copy(), part.copy()]
    halves[0].arrays["W_2"][:, :, chosen] = 0
    halves[1].arrays["W_2"][:, :, ~chosen] = 0
    halves[1].arrays["b_2"][:] = 0
    at = next(k for k, own in enumerate(draft.parts) if own is part)
    draft.parts[at : at + 1] = halves
    if rng.random() < 0.6:
        _merge(draft, at)


def _merge(draft: Draft, at: int) -> None:
    first, second = draft.parts[at : at + 2]
    units = max(part.arrays["W_1"].shape[1] for part in (first, second))
    for part in (first, second):
        more = units - part.arrays["W_1"].shape[1]
        for name, axis in (("W_1", 1), ("b_1", 1), ("W_2", 2)):
            array = part.arrays[name]
            shape = list(array.shape)
            shape[axis] = more
            part.arrays[name] = np.concatenate([array, np.zeros(shape)], axis=axis)
    for name, array in first.arrays.items():
        first.arrays[name] = np.concatenate([array, second.arrays[name]])
    del draft.parts[at + 1]


def merge_stages(draft: Draft, rng: np.random.Generator) -> None:
    """Two neighbours become the layers of one stage."""
    halves = [part.half for part in draft.parts]
    pairs = [
        k for k in range(len(halves) - 1) if halves[k] == halves[k + 1] == "feed_forward"
    ]
    if pairs:
        _merge(draft, int(rng.choice(pairs)))


def rescale(draft: Draft, rng: np.random.Generator) -> None:
    """A register in other units, everywhere or everywhere but in one place."""
    register, factor = int(rng.integers(draft.width)), 2.0 ** int(rng.integers(-8, 9))
    places: list[tuple[np.ndarray, float]] = [
        (draft.W_in[register], factor),
        (draft.start[:, register], factor),
        (draft.W_out[:, register], 1 / factor),
    ]
    for part in draft.parts:
        a = part.arrays
        if part.half == "feed_forward":
            places += [(a["W_1"][..., register], 1 / factor)]
            places += [(a["W_2"][:, register], factor), (a["b_2"][:, register], factor)]
        else:
            places += [(a[k][..., register], 1 / factor) for k in ("W_Q", "W_K", "W_V")]
            places += [(a["W_O"][:, :, register], factor)]
    if rng.random() < 0.3:
        del places[rng.integers(len(places))]
    for view, own in places:
        view *= own


def add_unit(draft: Draft, rng: np.random.Generator) -> None:
    """One more stage of two units, which may cancel, that read and write anything."""
    part = draft.feed_forward(2)
    row = np.zeros(draft.width)
    for _ in range(rng.integers(1, 4)):
        row[rng.integers(draft.width)] = rng.choice(COEFFICIENTS)
    part.arrays["W_1"][:] = row
    part.arrays["b_1"][:] = rng.choice(CONSTANTS)
    size = float(rng.choice([1e-6, 1e-3, 1.0, 2.0**40]))
    part.arrays["W_2"][0, rng.integers(draft.width)] = [size, -size]
    if rng.random() < 0.5:
        part.arrays["b_1"][0, 1] += rng.choice([0.1, -0.5, 1.0])
    draft.parts.insert(_place(draft, rng), part)


def copy_register(draft: Draft, rng: np.random.Generator) -> None:
    """A register is held twice, and read half from each, or 2 and -1 times."""
    old = int(rng.integers(draft.width))
    new = draft.add_register()
    draft.W_in[new], draft.start[:, new] = draft.W_in[old], draft.start[:, old]
    share = float(rng.choice([0.5, -1.0, -1024.0, 0.25]))
    for part in draft.parts:
        a = part.arrays
        names = ("W_1",) if part.half == "feed_forward" else ("W_Q", "W_K", "W_V")
        for name in names:
            a[name][..., new] = a[name][..., old] * (1 - share)
            a[name][..., old] *= share
        for name in ("W_2", "b_2") if part.half == "feed_forward" else ():
            a[name][:, new] = a[name][:, old]
        if part.half == "attention":
            a["W_O"][:, :, new] = a["W_O"][:, :, old]


def move_coefficient(draft: Draft, rng: np.random.Generator) -> None:
    """What some units read, or write, goes to another register."""
    part, new = _some_layers(draft, rng), _some_register(draft, rng)
    old = int(rng.integers(draft.width))
    a = part.arrays
    if rng.random() < 0.5:
        a["W_1"][..., new], a["W_1"][..., old] = a["W_1"][..., old].copy(), 0
    else:
        a["W_2"][:, new], a["W_2"][:, old] = a["W_2"][:, old].copy(), 0


def more_heads(draft: Draft, rng: np.random.Generator) -> None:
    """Heads that cancel, read the input, or write nothing."""
    part = next(part for part in draft.parts if part.half == "attention")
    a = part.arrays
    new = {name: np.repeat(array[:, :1], 3, axis=1) for name, array in a.items()}
    read = int(rng.integers(draft.width))
    new["W_V"][:, 1:] = 0
    new["W_V"][:, 1:, :, read] = rng.choice(CONSTANTS)
    new["W_O"][:, 1] = rng.choice([0.0, 1.0, 3.0])
    new["W_O"][:, 2] = -new["W_O"][:, 1]
    if rng.random() < 0.2:
        new["W_O"][:, 2] = 0
    if rng.random() < 0.3:
        new["W_K"][:, 1:] = rng.normal(size=new["W_K"][:, 1:].shape)
    part.arrays = new


CHANGES: tuple[Change, ...] = (
    read_more,
    add_constant,
    detour,
    there_and_back,
    swap_stages,
    repeat_stage,
    split_stage,
    merge_stages,
    rescale,
    add_unit,
    copy_register,
    move_coefficient,
    more_heads,
)


@dataclass(frozen=True)
class Outcome:
    """What was proved of a case, and what is so.

    Attributes:
        changes: Names of the changes.
        real, run: The bounds, or None.
        lower: The lower bound on d_2.
        real_sampled, run_sampled: The distances, at points of every cell.
    """

    changes: tuple[str, ...]
    real: float | None
    run: float | None
    lower: float
    real_sampled: float
    run_sampled: float
    obstacles: tuple[str, ...]

    @property
    def false(self) -> str | None:
        """Which claim is false, with 3 % for sampling."""
        if self.real is not None and not self.real_sampled * 0.97 <= self.real + 1e-9:
            return f"PROVED <= {self.real:.4g} in real arithmetic, {self.real_sampled:.4g}"
        if self.run is not None and not self.run_sampled * 0.97 <= self.run + 1e-9:
            return f"PROVED <= {self.run:.4g} in float64, {self.run_sampled:.4g}"
        if not self.lower <= self.real_sampled * 1.03 + 1e-9:
            return f"REFUTED, >= {self.lower:.4g}, {self.real_sampled:.4g}"
        return None


def origins() -> list[ef.Built]:
    """The networks that are tampered with."""
    wide, steps, narrow = (
        built(variant, grid=4) for variant in ("wide", "two-step", "narrow")
    )
    return [wide, steps, narrow, built_equivariant(), built("two-step", d=2, grid=2)]


def case(seed: int) -> tuple[Draft, ef.Built, tuple[str, ...]]:
    """A tampered network, the one it was, and the names of the changes."""
    rng = np.random.default_rng(seed)
    known = origins()
    origin = known[seed % len(known)]
    draft = Draft.of(origin.network)
    names: list[str] = []
    for _ in range(int(rng.integers(1, 4))):
        change = CHANGES[rng.integers(len(CHANGES))]
        change(draft, rng)
        names.append(change.__name__)
    return draft, origin, tuple(names)


def outcome(seed: int, each: int = 24) -> Outcome:
    """Prove what can be proved of a case, and measure it."""
    return measured(*case(seed), each, seed)


def measured(
    draft: Draft, origin: ef.Built, names: tuple[str, ...], each: int, seed: int
) -> Outcome:
    """Prove what can be proved of a draft, and measure it at `each` points of a cell."""
    proof, network = proof_of(draft, origin), draft.network()
    x = points(origin, each, seed)
    run = max(
        distance(origin.target, lambda x: network(x, executor="literal"), x),
        distance(origin.target, lambda x: network(x, executor="reference"), x),
    )
    exact = exactly(draft, x)
    real = run if exact is None else distance(origin.target, lambda _: exact, x)
    return Outcome(
        names,
        None if proof.real is None else float(proof.real.value),
        None if proof.float64 is None else float(proof.float64.value),
        float(proof.lower) ** 0.5,
        real,
        run,
        tuple(map(str, proof.obstacles)),
    )


def main() -> int:
    """Run many cases, print those with a false claim, and the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.cases):
        found = outcome(seed)
        counts["cases"] += 1
        counts["with a bound"] += found.real is not None
        counts["with a bound for float64"] += found.run is not None
        counts["with a lower bound"] += found.lower > 0
        counts["false"] += found.false is not None
        if found.false is not None:
            names = ", ".join(found.changes)
            sys.stdout.write(f"seed {seed}: {names}: {found.false}\n")
    sys.stdout.write(", ".join(f"{count} {what}" for what, count in counts.items()) + "\n")
    return int(counts["false"] > 0)


if __name__ == "__main__":
    sys.exit(main())
