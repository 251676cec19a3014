"""Weights and certificates of 31 configurations, bit for bit, before and after a change.

    python -m tests.contracts.recorded --write     keep what this commit gives
    python -m tests.contracts.recorded             compare with what was kept

A change of shape changes no bit. The values of exp and sin belong to the machine, so the
file is written anew before a redesign begins, and compared after each of its commits.
"""

import argparse
import hashlib
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import everyformer as ef
from everyformer import patterns
from everyformer.cli import tables

KEPT = Path(__file__).parent / "recorded.json"


def swirl(x: np.ndarray) -> np.ndarray:
    return np.stack([np.tanh(x[..., 1] - x[..., 0]), x[..., 0] * x[..., 1]], axis=-1)


def symmetric(x: np.ndarray) -> np.ndarray:
    return x * x + x.mean(axis=-2, keepdims=True)


def ordered(x: np.ndarray) -> np.ndarray:
    return x * np.arange(1, 1 + x.shape[-2])[:, None] * 0.25 + 0.5 * x[..., ::-1, :]


def bent(x: np.ndarray) -> np.ndarray:
    """Known by its Lipschitz constant alone."""
    return np.interp(x, [0, 0.5, 1], [0, 0.5, 0.25])


def same(n: int = 2, d: int = 1) -> ef.Target:
    return ef.Target(symmetric, n, d, equivariant=True)


def other(n: int = 2, d: int = 1) -> ef.Target:
    return ef.Target(ordered, n, d)


def configurations() -> Iterator[tuple[str, ef.Target, dict[str, Any]]]:
    """All methods, both theorems, sparse, URPE, rationals, p = 1, 2, 4 and infinity."""
    star, shifts = patterns.star(3), ef.SelectiveShifts
    yield "theorem 2", same(), {"grid": 8}
    yield "theorem 2, three tokens", same(3), {"grid": 4}
    yield "theorem 2, exact", same(), {"grid": 5, "method": shifts(softened=False)}
    yield "theorem 3", other(), {"grid": 8}
    yield "theorem 3, exact", other(), {"grid": 3, "method": shifts(softened=False)}
    yield "theorem 3, the paper's E", other(), {"grid": 4, "method": shifts(spacing=4)}
    yield "theorem 3, p = 1", other(1, 2), {"grid": 8, "p": 1}
    yield "theorem 3, p = 4", same(), {"grid": 8, "p": 4, "method": shifts(positional=True)}
    yield "one token", other(1), {"grid": 16}
    yield "a box", ef.Target(ordered, 2, 1, domain=[(-1, 2)]), {"grid": 4}
    declared = ef.Target(bent, 2, 1, equivariant=True, lipschitz=1, trace=False)
    yield "declared", declared, {"grid": 8}
    yield "theorem 2 or 3, tol", same(), {"tol": 0.3}
    yield "theorem 3, tol", other(), {"tol": 0.2}
    yield "urpe", other(), {"grid": 4, "method": "urpe"}
    yield "urpe, exact", other(), {"grid": 3, "method": ef.UrpeShifts(softened=False)}
    yield "star", other(3), {"grid": 2, "method": ef.SparseShifts(star)}
    ring = ef.SparseShifts(patterns.ring(3), softened=False)
    yield "ring, exact", other(3), {"grid": 2, "method": ring}
    yield "sweep", other(3), {"grid": 2, "method": ef.SparseShifts(star, variant="sweep")}
    path = ef.SparseShifts(star, gamma=(1, 0, 2))
    yield "a path", other(3), {"grid": 2, "method": path}
    yield "averaging", other(), {"grid": 8, "method": "averaging"}
    yield "narrow", other(), {"grid": 4, "method": ef.Averaging("narrow")}
    yield "two-step", other(), {"grid": 4, "p": 4, "method": ef.Averaging("two-step")}
    yield "averaging, equivariant", same(), {"grid": 4, "p": 1, "method": "averaging"}
    yield "averaging, tol", other(), {"tol": 0.1, "method": "averaging"}
    yield "partition, sup", other(), {"grid": 8, "p": math.inf, "method": "partition"}
    lattice = ef.Partition(decay=1, margin=2)
    yield "partition, D = 1", other(), {"grid": 8, "method": lattice}
    curl = ef.Target(swirl, 1, 2)
    yield "partition, p = 4, tol", curl, {"tol": 0.01, "p": 4, "method": "partition"}
    yield "partition, sup, tol", same(), {"tol": 0.05, "p": math.inf, "method": "partition"}
    yield "auto", other(), {"tol": 0.1, "method": "auto"}
    yield "auto, sup", other(1), {"tol": 0.01, "p": math.inf, "method": "auto"}
    among = ef.Cheapest(also=[ef.SparseShifts(patterns.star(2))])
    yield "auto, with a pattern", other(), {"tol": 0.3, "method": among}


def digests(built: ef.Built) -> dict[str, str]:
    """Of the weights, and of all that the certificate says but the versions."""
    with tempfile.TemporaryDirectory() as folder:
        built.save(folder)
        weights = (Path(folder) / "network.safetensors").read_bytes()
        said = json.loads((Path(folder) / "certificate.json").read_text())
    said.pop("versions")
    text = json.dumps(said, sort_keys=True).encode()
    found = {"weights": weights, "certificate": text}
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep what is found")
    given = parser.parse_args()
    found = {
        name: digests(ef.construct(target, **arguments))
        for name, target, arguments in configurations()
    }
    if given.write:
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
    kept = json.loads(KEPT.read_text())
    wrong = [name for name in kept if found.get(name) != kept[name]]
    tables.show(f"{len(found)} configurations, {len(wrong)} differ {wrong or ''}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
