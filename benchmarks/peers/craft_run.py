"""Tracr's issue #9: does its intermediate model (CRAFT) compute the RASP program?

    python benchmarks/peers/craft_run.py CHECKOUT [-o FILE]

CHECKOUT is a checkout of github google-deepmind/tracr. RASP and CRAFT need numpy and
networkx alone, so jax, which Tracr's last stage needs, is not imported. The two stock
programs of the issue, `length` and `sort`, at its length 3, on all words; CRAFT is given
its tokens as Tracr's own test of this stage gives them. Beside it `method="compile"`.
"""

import argparse
import itertools
import json
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import everyformer as ef
from everyformer.bench.results import environment

WORDS: dict[str, tuple[list[Any], list[Any]]] = {
    "length": (["a", "b"], ["a", "a", "a"]),
    "sort": ([1, 2, 3], [1, 1, 2]),
}
"""The vocabulary, and the input of the issue."""


def craft(
    tracr: Any, program: Any, vocabulary: Sequence[Any], n: int
) -> Callable[[Sequence[Any]], list[Any]]:
    """The CRAFT model of a RASP program with categorical results."""
    bases, nodes = tracr.bases, tracr.nodes
    found = tracr.rasp_to_graph.extract_rasp_graph(program)
    tracr.basis_inference.infer_bases(found.graph, found.sink, set(vocabulary), n)
    bos = bases.BasisDirection("tokens", "compiler_bos")
    one = bases.BasisDirection("one")
    tracr.expr_to_craft_graph.add_craft_components_to_rasp_graph(
        found.graph, bos_dir=bos, one_dir=one
    )
    model = tracr.craft_graph_to_model.craft_graph_to_model(found.graph, found.sources)
    space = bases.join_vector_spaces(
        bases.VectorSpaceWithBasis.from_values("tokens", vocabulary),
        bases.VectorSpaceWithBasis.from_values("indices", range(n)),
        bases.VectorSpaceWithBasis([one, bos]),
    )
    results = bases.VectorSpaceWithBasis(found.sink[nodes.OUTPUT_BASIS])

    def run(word: Sequence[Any]) -> list[Any]:
        def at(*direction: Any) -> Any:
            return space.vector_from_basis_direction(bases.BasisDirection(*direction))

        rows = [at("tokens", "compiler_bos") + at("one")]
        rows += [at("indices", k) + at("tokens", w) + at("one") for k, w in enumerate(word)]
        given = model.apply(bases.VectorInBasis.stack(rows)).project(results)
        best = np.asarray(given.magnitudes)[1:].argmax(axis=-1)
        return [results.basis[k].value for k in best]

    return run


def ours(name: str, words: Sequence[Sequence[Any]], n: int) -> dict[str, Any]:
    """The same with method="compile": sort, or the number of tokens."""

    def function(x: np.ndarray) -> np.ndarray:
        return np.sort(x, axis=-2) if name == "sort" else 0 * x + x.shape[-2]

    built = ef.construct(
        ef.Target(function, n, 1, domain=[(0, 3)]), tol=1e-6, method="compile"
    )
    x = np.array([[[w if isinstance(w, int) else 0] for w in word] for word in words])
    gap = np.abs(built.network(x.astype(float)) - function(x.astype(float)))
    bound = built.certificate.float64_bound
    return {
        "parameters": built.cost.parameters,
        "proved_float64": None if bound is None else float(bound.value),
        "exact": int((gap < 0.5).all(axis=(-2, -1)).sum()),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", "-o", type=Path)
    chosen = parser.parse_args()
    tracr = stages(chosen.checkout)
    rows: list[dict[str, Any]] = []
    for name, (vocabulary, said) in WORDS.items():
        n = len(said)
        tokens = tracr.rasp.tokens
        if name == "sort":
            program = tracr.lib.make_sort(tokens, tokens, max_seq_len=n, min_key=1)
        else:
            program = tracr.lib.make_length()
        run = craft(tracr, program, vocabulary, n)
        words = [list(word) for word in itertools.product(vocabulary, repeat=n)]
        agree = sum(run(word) == list(program(word)) for word in words)
        rows.append(
            {"case": name, "n": n, "input": said, "rasp": list(program(said))}
            | {"craft": run(said), "words": len(words), "craft_agrees": agree}
            | {"compile": ours(name, words, n)}
        )
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
    if chosen.out is not None:
        report = {"theme": "peers: tracr #9", "environment": environment(), "rows": rows}
        chosen.out.write_text(json.dumps(report, indent=1) + "\n")


def stages(checkout: Path) -> Any:
    """Tracr's modules up to CRAFT; its package imports jax when it is imported whole."""
    sys.path.insert(0, str(checkout))
    package = types.ModuleType("tracr.compiler")
    package.__path__ = [str(checkout / "tracr" / "compiler")]
    sys.modules["tracr.compiler"] = package
    found = types.SimpleNamespace()
    for place in (
        "compiler.basis_inference", "compiler.craft_graph_to_model", "compiler.lib",
        "compiler.expr_to_craft_graph", "compiler.nodes", "compiler.rasp_to_graph",
        "craft.bases", "rasp.rasp",
    ):  # fmt: skip
        module = __import__(f"tracr.{place}", fromlist=["_"])
        setattr(found, place.rsplit(".", 1)[1], module)
    return found


if __name__ == "__main__":
    main()
