"""Random changes of compiled networks: weights, claims, f, domain, p, eps.

Most changes of one number end in UNKNOWN. `nudge_and_claim` moves a weight and says which
number it stands for, so that the proof goes through and its errors are put to the test.
"""

import copy
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from tests.adversarial.tampering import (
    Draft,
    add_register,
    change_all,
    change_function,
    flip_bits,
    move_entry,
    move_stages,
    move_units,
    scale_register,
)

Change = Callable[[Draft, np.random.Generator], None]

CLAIMED = ("W_Q", "b_Q", "W_K", "W_V", "W_O", "W_1", "b_1", "W_2", "W_out", "start")
"""Arrays whose entries may stand for rationals."""

CONTENT_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

ODD: tuple[Any, ...] = (None, -1, 0, 1, 10**9, 1.5, "", "1/0", "1/3", "x", [], {}, True)


def program(draft: Draft) -> dict[str, Any]:
    return draft.description["program"]["claims"]


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside of parsed JSON."""
    if isinstance(values, dict):
        items = list(values.items())
    elif isinstance(values, list):
        items = list(enumerate(values))
    else:
        return []
    return [p for k, v in items for p in ((*path, k), *places(v, (*path, k)))]


def inside(values: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


def scale_of(rng: np.random.Generator) -> float:
    """Mostly small shares, of either sign."""
    return float(rng.choice([-1, 1]) * 10.0 ** rng.uniform(-16, 0))


def used_entry(draft: Draft, rng: np.random.Generator) -> None:
    """A number that is not 0: by a share, an ulp, halved, negated, to 0."""
    names = [name for name, array in draft.arrays.items() if array.any()]
    name = str(rng.choice(sorted(names)))
    array = draft.arrays[name] = draft.arrays[name].copy()
    at = tuple(rng.permutation(np.argwhere(array))[0])
    value = array[at]
    moved = value * (1 + scale_of(rng)), np.nextafter(value, 9e9)
    array[at] = (*moved, value / 2, value * 2, -value, 0.0)[int(rng.integers(0, 6))]


def nudge_and_claim(draft: Draft, rng: np.random.Generator) -> None:
    """A weight is moved, and claimed to stand for what it was."""
    for _ in range(int(rng.integers(1, 4))):
        names = [
            name
            for name, array in sorted(draft.arrays.items())
            if name.rsplit(".", 1)[-1] in CLAIMED and array.any()
        ]
        name = str(rng.choice(names))
        array = draft.arrays[name] = draft.arrays[name].copy()
        at = tuple(int(k) for k in rng.permutation(np.argwhere(array))[0])
        old = Fraction(float(array[at]))
        array[at] *= 1 + scale_of(rng)
        parts = name.split(".")
        key = parts[-1] if parts[0] == "registers" else f"{parts[1]}.{parts[-1]}"
        index = at if parts[0] == "registers" else at[1:]
        known = program(draft)["coefficients"].setdefault(key, [])
        if not any(entry[:-1] == list(index) for entry in known):
            known.append([*index, str(old)])


def false_rational(draft: Draft, rng: np.random.Generator) -> None:
    """A rational of a claim is moved, or one is claimed of some entry."""
    claims = program(draft)
    texts = [p for p in places(claims) if _is_rational(inside(claims, p))]
    if texts and rng.random() < 0.7:
        *path, last = texts[int(rng.integers(0, len(texts)))]
        old = Fraction(inside(claims, tuple(path))[last])
        near = old * (1 + Fraction(scale_of(rng)))
        others = (near, -old, old + 1, old / 2, Fraction(0), 1 / (old or 1))
        inside(claims, tuple(path))[last] = str(others[int(rng.integers(0, 6))])
        return
    b = int(rng.integers(0, len(claims["blocks"])))
    key = str(rng.choice([f"{b}.{name}" for name in CLAIMED[:-2]] + list(CLAIMED[-2:])))
    index = [int(k) for k in rng.integers(0, 4, int(rng.integers(1, 4)))]
    entry = [*index, str(Fraction(float(rng.normal())))]
    claims["coefficients"].setdefault(key, []).append(entry)


def _is_rational(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip("-").replace("/", "", 1).isdigit()


def odd_claim(draft: Draft, rng: np.random.Generator) -> None:
    """A value of the claims becomes an odd one, or another value of the claims."""
    claims = program(draft)
    paths = places(claims)
    *path, last = paths[int(rng.integers(0, len(paths)))]
    if rng.random() < 0.5:
        new = ODD[int(rng.integers(0, len(ODD)))]
    else:
        new = copy.deepcopy(inside(claims, paths[int(rng.integers(0, len(paths)))]))
    inside(claims, tuple(path))[last] = new


def drop_claim(draft: Draft, rng: np.random.Generator) -> None:
    """An element of a list of claims is dropped, doubled or moved to the end."""
    claims = program(draft)
    lists = [p for p in places(claims) if isinstance(inside(claims, p), list)]
    chosen = inside(claims, lists[int(rng.integers(0, len(lists)))])
    if not chosen:
        return
    k = int(rng.integers(0, len(chosen)))
    kind = int(rng.integers(0, 3))
    one = chosen[k]
    if kind != 1:
        del chosen[k]
    if kind != 0:
        chosen.append(copy.deepcopy(one))


def prefix_noise(draft: Draft, rng: np.random.Generator) -> None:
    """Registers of prefix tokens hold numbers; or a prefix token is added or doubled."""
    prefix = draft.arrays.get("registers.prefix")
    if prefix is None:
        prefix = np.zeros((0, draft.width))
    prefix = prefix.copy()
    if rng.random() < 0.5 and len(prefix):
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(0, len(prefix))), int(rng.integers(0, prefix.shape[1]))
            prefix[at] = rng.choice([1.0, -1.0, 1e-3, 7.0, 2.0**30, 2.0**100, 2.0**199])
    else:
        one = (
            prefix[-1:]
            if len(prefix) and rng.random() < 0.5
            else np.zeros((1, draft.width))
        )
        prefix = np.concatenate([prefix, one])
    draft.arrays["registers.prefix"] = prefix
    draft.description["architecture"]["num_prefix"] = len(prefix)


def scale_values(draft: Draft, rng: np.random.Generator) -> None:
    """A column of prefix numbers is scaled, swapped in two places, or shifted."""
    prefix = draft.arrays.get("registers.prefix")
    if prefix is None:
        return used_entry(draft, rng)
    prefix = draft.arrays["registers.prefix"] = prefix.copy()
    k = int(rng.permutation(np.flatnonzero(prefix.any(axis=0)))[0])
    a, b = rng.integers(0, len(prefix), 2)
    kind = int(rng.integers(0, 3))
    if kind == 0:
        prefix[:, k] *= 1 + scale_of(rng)
    elif kind == 1:
        prefix[[a, b], k] = prefix[[b, a], k]
    else:
        prefix[:, k] += scale_of(rng)
    return None


def copy_head(draft: Draft, rng: np.random.Generator) -> None:
    """A head or a unit is doubled, with its claim or without."""
    blocks = program(draft)["blocks"]
    b = int(rng.integers(0, len(blocks)))
    half = "attention" if rng.random() < 0.6 else "feed_forward"
    own = [name for name in draft.arrays if name.startswith(f"stages.{b}.{half}.")]
    axis = 1
    for name in own:
        array = draft.arrays[name]
        axis = 2 if name.endswith("W_2") else 1
        if not name.endswith("b_2"):
            part = np.take(array, [0], axis=axis)
            draft.arrays[name] = np.concatenate([array, part], axis=axis)
    if own and half == "attention" and rng.random() < 0.8:
        blocks[b]["heads"].append(copy.deepcopy(blocks[b]["heads"][0]))


def change_box(draft: Draft, rng: np.random.Generator) -> None:
    """The domain: wider, shifted, narrow, or at odd numbers."""
    for ends in draft.certificate["claim"]["domain"]:
        low, high = (Fraction(end) for end in ends)
        kind = int(rng.integers(0, 5))
        if kind == 0:
            low -= Fraction(float(rng.choice([1e-9, 0.125, 0.5, 1, 3])))
        elif kind == 1:
            high += Fraction(float(rng.choice([1e-9, 0.125, 0.5, 1, 3])))
        elif kind == 2:
            low, high = low + Fraction(1, 4), low + Fraction(1, 4) + Fraction(2.0**-20)
        elif kind == 3:
            high = Fraction(float(high) * (1 + scale_of(rng)))
        ends[:] = [str(Fraction(float(low))), str(Fraction(float(high)))]


def change_eps(draft: Draft, rng: np.random.Generator) -> None:
    """eps, p, what is claimed, a grid."""
    claim = draft.certificate["claim"]
    kind = int(rng.integers(0, 4))
    if kind == 0:
        claim["eps"] = str(
            Fraction(claim["eps"]) * Fraction(float(rng.choice([1e-9, 0.5, 2])))
        )
    elif kind == 1:
        claim["p"] = str(rng.choice(["1", "2", "3/2", "64", "inf"]))
        claim["metric"] = "sup" if claim["p"] == "inf" else "d_p"
    elif kind == 2:
        claim["claims"] = [["real"], ["float64"], ["float64", "real"]][rng.integers(0, 3)]
    else:
        draft.certificate["construction"]["grid"] = int(rng.choice([2, 3, 4]))


def nudge_constant(draft: Draft, rng: np.random.Generator) -> None:
    """A constant of f moves by a share."""
    lines = draft.certificate["target"]["expression"]["nodes"]
    found = [k for k, line in enumerate(lines) if line[0] == "const"]
    if not found:
        return change_function(draft, rng)
    k = found[int(rng.integers(0, len(found)))]
    moved = Fraction(lines[k][1]) * (1 + Fraction(scale_of(rng)))
    lines[k] = ["const", str(Fraction(float(moved)))]
    return None


CHANGES: tuple[Change, ...] = (
    nudge_and_claim, nudge_and_claim, nudge_and_claim, used_entry, used_entry, scale_values,
    scale_values, prefix_noise, prefix_noise, false_rational, false_rational, odd_claim,
    drop_claim, copy_head, change_box, change_box, change_eps, nudge_constant,
    change_function, flip_bits, move_entry, change_all, move_units, move_stages,
    add_register, scale_register,
)  # fmt: skip


def tamper(source: Path, place: Path, rng: np.random.Generator) -> tuple[str, ...]:
    """Write a changed copy of a folder; half of the claims are so mild that all is open."""
    draft = Draft.read(source)
    if rng.random() < 0.5:
        draft.certificate["claim"]["eps"] = "1000"
    names: list[str] = []
    for _ in range(1 + int(rng.random() < 0.5) + int(rng.random() < 0.2)):
        change = CHANGES[int(rng.integers(0, len(CHANGES)))]
        try:
            change(draft, rng)
        except CONTENT_ERRORS:
            continue  # an earlier change left nothing of that kind
        names.append(change.__name__)
    draft.write(place)
    return tuple(names)
