"""Structural mutations of JSON values, of headers and of arrays, from a seed."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.adversarial.hostile_files import Parts

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**20, 2**31, 2**53, 2**63, 10**30, 10**400,
    0.0, 0.5, -0.0, 1e-320, 1e308, 1e160, "", "0", "1", "-1", "1/3", "1/0", "0.1", "inf",
    "nan", "x", "1" * 400, f"1/{'9' * 400}", "9" * 3999, f"{10**160}", f"1/{2**1074}",
    [], [[]], {}, [0], ["0", "1"], [["0", "1"]], [["0", f"1/{2**1074}"]],
    [["-" + str(10**160), str(10**160)]], [[0, 1]], {"a": 1}, [None], "p-norm 2", "sum",
    "modulus", "expression", "nothing", "real", "float64", ["real"], ["float64"],
    ["real", "real"],
]  # fmt: skip
"""What a value is replaced by: types swapped, numbers huge, tiny, negative, texts."""


def places(value: Any, limit: int = 4000) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < limit:
        one = waiting.pop()
        items: Any = ()
        if isinstance(one, dict):
            items = one.items()
        elif isinstance(one, list):
            items = enumerate(one)
        for key, inner in items:
            found.append((one, key))
            waiting.append(inner)
    return found


def mutate_json(rng: random.Random, value: Any) -> str:
    """Change one place of a JSON value; what was done, in words."""
    every = places(value)
    container, key = rng.choice(every)
    kind = rng.choice(["replace", "replace", "replace", "delete", "swap", "wrap", "double"])
    if kind == "delete":
        del container[key]
    elif kind == "swap":
        other, place = rng.choice(every)
        held = copy.deepcopy(other[place])
        other[place] = copy.deepcopy(container[key])
        container[key] = held
    elif kind == "wrap":
        container[key] = [container[key]]
    elif kind == "double" and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif kind == "double":
        container[f"{key} "] = container[key]
    else:
        container[key] = copy.deepcopy(rng.choice(VALUES))
    return f"{kind} {str(key)[:40]}"


def mutate_array(rng: random.Random, parts: Parts) -> str:
    """Change one array: its shape, its kind, its numbers, or whether it is there."""
    name = rng.choice(list(parts.tensors))
    array = parts.tensors[name]
    changes: dict[str, Callable[[], np.ndarray]] = {
        "empty": lambda: array[:0],
        "flat": lambda: array.reshape(-1),
        "axis": lambda: array[None],
        "transposed": lambda: array.T,
        "twice": lambda: np.concatenate([array, array]),
        "as booleans": lambda: array != 0,
        "as floats": lambda: array.astype(np.float64),
        "as integers": lambda: np.nan_to_num(array).astype(np.int64),
        "huge": lambda: array * np.asarray(2**60, array.dtype),
        "1e300": lambda: np.full(array.shape, 1e300),
        "subnormal": lambda: np.full(array.shape, 5e-324),
        "nan": lambda: np.full(array.shape, np.nan),
        "zero": lambda: np.zeros_like(array),
        "nothing": lambda: np.take(array, [], axis=-1) if array.ndim else array,
        "reversed": lambda: array[..., ::-1],
    }
    kind = rng.choice([*changes, "gone", "renamed"])
    if kind == "gone":
        del parts.tensors[name]
    elif kind == "renamed":
        parts.tensors[rng.choice([name + "x", "positions", "stages.0." + name])] = array
    else:
        with np.errstate(all="ignore"):
            parts.tensors[name] = changes[kind]()
    return f"{kind} {name}"


def mutate(rng: random.Random, parts: Parts) -> str:
    """One to three changes of a folder."""
    done: list[str] = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kind = rng.choice(["certificate", "certificate", "description", "header", "array"])
        if kind == "certificate":
            done.append(mutate_json(rng, parts.certificate))
        elif kind == "description":
            done.append(mutate_json(rng, parts.description))
        elif kind == "array" and parts.tensors:
            done.append(mutate_array(rng, parts))
        elif kind == "header":
            seed = rng.random()

            def change(header: dict[str, Any], seed: float = seed) -> None:
                mutate_json(random.Random(seed), header)

            parts.header = change
        done[-1:] = [f"{kind}: {done[-1] if done else ''}"]
    return "; ".join(done)
