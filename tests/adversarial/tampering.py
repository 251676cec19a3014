"""Random changes of a network and its certificate, with all hashes brought up to date.

A change is a function of a `Draft`, the two files taken apart. Changes are drawn with a
random generator of their own, so that a case is known by its seed and its number.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from everyformer.certify.verify import NETWORK_FILE
from everyformer.errors import ExpressionError
from everyformer.numerics.expression import BINARY, UNARY, Expression

FORMAT = "everyformer-network"
CERTIFICATE_FILE = "certificate.json"
WRITES = {"W_in": 0, "start": 1, "prefix": 1, "W_2": 1, "b_2": 1, "W_O": 2}
READS = {"W_out": 1, "W_1": 2, "W_Q": 3, "W_K": 3, "W_V": 3}
"""Arrays that write or read registers, and the axis that counts these."""

SPECIAL = (0.0, -0.0, 1.0, -1.0, 5e-324, -(2.0**-1030), 2.0**-540, 1e-6, 1e160, -1e308)


@dataclass
class Draft:
    """A folder taken apart: arrays, the description of the network, the certificate."""

    arrays: dict[str, np.ndarray]
    description: dict[str, Any]
    certificate: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Draft":
        with safe_open(folder / NETWORK_FILE, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            description = json.loads(file.metadata()[FORMAT])
        certificate = json.loads((folder / CERTIFICATE_FILE).read_text())
        return cls(arrays, description, certificate)

    def write(self, folder: Path) -> None:
        tensors = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        save_file(tensors, folder / NETWORK_FILE, {FORMAT: json.dumps(self.description)})
        data = (folder / NETWORK_FILE).read_bytes()
        self.certificate["weights"]["sha256"] = hashlib.sha256(data).hexdigest()
        target = self.certificate["target"]
        with suppress(ExpressionError):  # it is refused whatever its hash
            target["sha256"] = Expression.from_json(target["expression"]).sha256
        (folder / CERTIFICATE_FILE).write_text(json.dumps(self.certificate))

    @property
    def width(self) -> int:
        """Numbers in a token inside the blocks."""
        held = self.arrays.get("registers.W_in")
        return self.description["architecture"]["d_model"] if held is None else len(held)

    @property
    def exact(self) -> bool:
        return bool(self.description["denominators"])

    def stages(self) -> list[dict[str, np.ndarray]]:
        """The arrays of every stage, by their names inside it."""
        found: list[dict[str, np.ndarray]] = [{} for _ in self.description["stages"]]
        for name, array in self.arrays.items():
            if name.startswith("stages."):
                _, index, inner = name.split(".", 2)
                found[int(index)][inner] = array
        return found

    def set_stages(self, stages: list[tuple[list[str], dict[str, np.ndarray]]]) -> None:
        """Other stages in place of all; rationals keep the denominators they came with."""
        kept = {k: v for k, v in self.arrays.items() if not k.startswith("stages.")}
        for index, (_, arrays) in enumerate(stages):
            kept |= {f"stages.{index}.{name}": array for name, array in arrays.items()}
        self.description["stages"] = [title for title, _ in stages]
        self.arrays = kept


Change = Callable[[Draft, np.random.Generator], None]


def _pick(draft: Draft, rng: np.random.Generator, kind: str = "") -> str:
    names = [name for name in sorted(draft.arrays) if kind in name]
    sizes = np.array([draft.arrays[name].size for name in names], dtype=float)
    if not sizes.any():
        return str(rng.choice(sorted(draft.arrays)))
    # Small arrays as often as large ones, by half.
    weights = 0.5 / len(names) + 0.5 * sizes / sizes.sum()
    return str(rng.choice(names, p=weights / weights.sum()))


def _own(draft: Draft, name: str) -> np.ndarray:
    draft.arrays[name] = draft.arrays[name].copy()
    return draft.arrays[name]


def _entry(array: np.ndarray, rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(rng.integers(0, size)) for size in array.shape)


def flip_bits(draft: Draft, rng: np.random.Generator) -> None:
    """One to three bits of the weights."""
    for _ in range(int(rng.integers(1, 4))):
        array = _own(draft, _pick(draft, rng))
        if array.size == 0:
            continue
        at = _entry(array, rng)
        if array.dtype == bool:
            array[at] = not array[at]
        else:
            bits = array.view(np.int64)
            bits[at] ^= np.int64(1) << np.int64(rng.integers(0, 63))


def move_entry(draft: Draft, rng: np.random.Generator) -> None:
    """One entry by an ulp, a factor, a sum, to a special number, or to another's value."""
    array = _own(draft, _pick(draft, rng))
    if array.dtype != np.float64 or array.size == 0:
        return flip_bits(draft, rng)
    at, other = _entry(array, rng), _entry(array, rng)
    value = array[at]
    choices = [
        np.nextafter(value, np.inf),
        np.nextafter(value, -np.inf),
        -value,
        value * 2.0 ** int(rng.integers(-12, 13)),
        value * (1 + rng.normal() * 10.0 ** rng.uniform(-12, -1)),
        value + rng.normal() * 10.0 ** rng.uniform(-9, 0),
        rng.choice(SPECIAL),
        array[other],
    ]
    array[at] = choices[int(rng.integers(0, len(choices)))]
    return None


def change_all(draft: Draft, rng: np.random.Generator) -> None:
    """A whole array: scaled, shifted, set to 0, reversed along an axis, of another type."""
    name = _pick(draft, rng)
    array = _own(draft, name)
    kind = int(rng.integers(0, 6))
    if kind == 0:
        draft.arrays[name] = np.flip(array, axis=int(rng.integers(0, array.ndim)))
    elif kind == 1:
        draft.arrays[name] = np.zeros_like(array)
    elif kind == 2:
        dtype = [np.float32, np.bool_, np.int64, np.float16, np.uint8][rng.integers(0, 5)]
        with np.errstate(all="ignore"):
            draft.arrays[name] = array.astype(dtype)
    elif array.dtype == np.float64:
        scale = 2.0 ** int(rng.integers(-3, 4)) if kind == 3 else 1 + 1e-3 * rng.normal()
        draft.arrays[name] = array * scale if kind < 5 else array + 1e-3 * rng.normal()


def move_layers(draft: Draft, rng: np.random.Generator) -> None:
    """Layers of a stage: two swapped (in all arrays or in some), one doubled or dropped."""
    stages = draft.stages()
    index = int(rng.integers(0, len(stages)))
    arrays = stages[index]
    count = len(next(iter(arrays.values())))
    order = np.arange(count)
    kind = int(rng.integers(0, 4))
    a, b = rng.integers(0, count, 2)
    if kind == 0:
        order = np.insert(order, a, a)
    elif kind == 1:
        order = np.delete(order, a)
    else:
        order[[a, b]] = order[[b, a]]
    for name, array in arrays.items():
        if kind < 3 or rng.random() < 0.5:
            draft.arrays[f"stages.{index}.{name}"] = array[order]


def move_units(draft: Draft, rng: np.random.Generator) -> None:
    """Hidden units: permuted, scaled by a power of two, doubled with half the effect."""
    found = [k for k, arrays in enumerate(draft.stages()) if "feed_forward.W_1" in arrays]
    if not found or draft.exact:
        return move_layers(draft, rng)
    here = f"stages.{rng.choice(found)}.feed_forward."
    W_1, b_1, W_2 = (draft.arrays[here + name] for name in ("W_1", "b_1", "W_2"))
    r = W_1.shape[1]
    kind = int(rng.integers(0, 4))
    order = rng.permutation(r)
    if kind == 0:
        W_1, b_1, W_2 = W_1[:, order], b_1[:, order], W_2[:, :, order]
    elif kind == 1:
        scale = 2.0 ** int(rng.integers(-20, 21))
        W_1, b_1, W_2 = W_1 * scale, b_1 * scale, W_2 / scale
    elif kind == 2:
        W_1 = np.concatenate([W_1, W_1], 1)
        b_1 = np.concatenate([b_1, b_1], 1)
        W_2 = np.concatenate([W_2 * 0.5, W_2 * 0.5], 2)
    else:
        W_1 = W_1[:, order]
    draft.arrays |= {here + "W_1": W_1, here + "b_1": b_1, here + "W_2": W_2}
    return None


def move_stages(draft: Draft, rng: np.random.Generator) -> None:
    """Stages: swapped, doubled, dropped, renamed."""
    stages = list(zip(draft.description["stages"], draft.stages(), strict=True))
    if draft.exact:
        return move_layers(draft, rng)
    a, b = rng.integers(0, len(stages), 2)
    kind = int(rng.integers(0, 4))
    if kind == 0:
        stages[a], stages[b] = stages[b], stages[a]
    elif kind == 1:
        stages.insert(int(b), stages[a])
    elif kind == 2 and len(stages) > 1:
        del stages[a]
    else:
        (name, arrays), (other, more) = stages[a], stages[b]
        stages[a], stages[b] = (other, arrays), (name, more)
    return draft.set_stages(stages)


def add_stage(draft: Draft, rng: np.random.Generator) -> None:
    """One more feed-forward stage, anywhere: it adds a constant, or one hidden unit."""
    if draft.exact:
        return flip_bits(draft, rng)
    w, r = draft.width, 4
    W_1, b_1 = np.zeros((1, r, w)), np.zeros((1, r))
    W_2, b_2 = np.zeros((1, w, r)), np.zeros((1, w))
    size = float(rng.choice([1e-12, 1e-6, 1e-3, 0.1, 0.3, 1.0, 16.0])) * rng.choice([-1, 1])
    if rng.random() < 0.5:
        b_2[0, rng.integers(0, w)] = size
    else:
        W_1[0, 0, rng.integers(0, w)] = rng.choice([1.0, -1.0, 64.0])
        b_1[0, 0] = rng.normal()
        W_2[0, rng.integers(0, w), 0] = size
    arrays = {"W_1": W_1, "b_1": b_1, "W_2": W_2, "b_2": b_2}
    stages = list(zip(draft.description["stages"], draft.stages(), strict=True))
    title = stages[int(rng.integers(0, len(stages)))][0]
    whole = {f"feed_forward.{name}": array for name, array in arrays.items()}
    stages.insert(int(rng.integers(0, len(stages) + 1)), (title, whole))
    return draft.set_stages(stages)


def add_register(draft: Draft, rng: np.random.Generator) -> None:
    """One more register: constant, a copy of the input, or read by a hidden unit."""
    if "registers.W_in" not in draft.arrays:
        return move_entry(draft, rng)
    w = draft.width
    at = int(rng.integers(0, w + 1))
    for name in sorted(draft.arrays):
        axis = (WRITES | READS).get(name.rsplit(".", 1)[-1])
        if axis is not None:
            draft.arrays[name] = np.insert(draft.arrays[name], at, 0.0, axis=axis)
    draft.description["architecture"]["width"] = w + 1
    directions = draft.description["construction"].get("id_direction")
    if directions is not None and len(directions) == w:
        directions.insert(at, 0)
    if rng.random() < 0.5:
        draft.arrays["registers.start"][:, at] = rng.normal()
    if rng.random() < 0.3:
        draft.arrays["registers.W_in"][at, 0] = rng.choice([1.0, 1e-6])
    for name in sorted(draft.arrays):
        if name.endswith(".W_1") and rng.random() < 0.4:
            draft.arrays[name][:, int(rng.integers(0, draft.arrays[name].shape[1])), at] = (
                rng.choice([1.0, 1e-6, 64.0])
            )
        if name.endswith(".b_2") and rng.random() < 0.4:
            draft.arrays[name][:, at] = rng.choice([0.3, 1e-6, -1.0])
    return None


def scale_register(draft: Draft, rng: np.random.Generator) -> None:
    """A register in other units: a power of two everywhere, which changes no output."""
    if "registers.W_in" not in draft.arrays:
        return move_units(draft, rng)
    at = int(rng.integers(0, draft.width))
    scale = 2.0 ** int(rng.integers(-30, 31))
    for name in sorted(draft.arrays):
        last = name.rsplit(".", 1)[-1]
        axis = (WRITES | READS).get(last)
        if axis is not None:
            array = np.moveaxis(_own(draft, name), axis, 0)
            array[at] = array[at] * scale if last in WRITES else array[at] / scale
    return None


def change_claim(draft: Draft, rng: np.random.Generator) -> None:
    """What is claimed: eps, p, the domain, K, for which runs."""
    claim, kind = draft.certificate["claim"], int(rng.integers(0, 5))
    if kind == 0:
        factor = Fraction(float(rng.choice([0.5, 0.9, 0.999, 1.01, 2.0, 100.0])))
        claim["eps"] = str(Fraction(claim["eps"]) * factor)
    elif kind == 1:
        claim["p"] = str(rng.choice(["1", "2", "3/2", "4", "64", "inf"]))
        claim["metric"] = "sup" if claim["p"] == "inf" else "d_p"
    elif kind == 2:
        ends = claim["domain"][int(rng.integers(0, len(claim["domain"])))]
        side = int(rng.integers(0, 2))
        step = float(rng.choice([-1.0, -0.5, 2.0**-20, 0.25, 1.0]))
        ends[side] = str(Fraction(ends[side]) + Fraction(step))
    elif kind == 3:
        K = draft.certificate["construction"]["grid"]
        other = int(rng.choice([K - 1, K + 1, 2 * K, 2]))
        draft.certificate["construction"]["grid"] = other
    else:
        claim["claims"] = [["real"], ["float64"], ["float64", "real"]][rng.integers(0, 3)]


def change_function(draft: Draft, rng: np.random.Generator) -> None:
    """The program of f: an operation, an operand, a constant, the outputs."""
    program = draft.certificate["target"]["expression"]
    lines = program["nodes"]
    k = int(rng.integers(0, len(lines)))
    op, *args = lines[k]
    kind = int(rng.integers(0, 4))
    if kind == 0:
        for family in (UNARY, BINARY):
            if op in family:
                lines[k] = [str(rng.choice(sorted(family))), *args]
    elif kind == 1 and op not in {"const", "x"} and k:
        lines[k][1] = int(rng.integers(0, k))
    elif kind == 2:
        at = int(rng.integers(0, len(lines)))
        lines += [["const", str(Fraction(rng.normal()))], ["add", at, len(lines)]]
        row = program["outputs"][int(rng.integers(0, len(program["outputs"])))]
        row[0] = len(lines) - 1
    else:
        program["outputs"] = program["outputs"][::-1]


CHANGES: tuple[Change, ...] = (
    flip_bits,
    move_entry,
    change_all,
    move_layers,
    move_units,
    move_stages,
    add_stage,
    add_register,
    scale_register,
    change_claim,
    change_function,
)


def tamper(source: Path, place: Path, rng: np.random.Generator) -> tuple[str, ...]:
    """Write a changed copy of a folder; half of the claims are so mild that truth is open.

    Returns:
        The names of the changes.
    """
    draft = Draft.read(source)
    if rng.random() < 0.5:
        mild = Fraction(draft.certificate["claim"]["eps"]) * 1000
        draft.certificate["claim"]["eps"] = str(mild)
    names: list[str] = []
    for _ in range(1 + int(rng.random() < 0.4) + int(rng.random() < 0.1)):
        change = CHANGES[int(rng.integers(0, len(CHANGES)))]
        try:
            change(draft, rng)
        except (IndexError, ValueError, KeyError):
            continue  # an earlier change left nothing of that kind
        names.append(change.__name__)
    draft.write(place)
    return tuple(names)
