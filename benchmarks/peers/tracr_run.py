"""Compile Tracr's stock programs and run them on integer tokens.

    python benchmarks/peers/tracr_run.py CHECKOUT [-o FILE] [--sizes 5 8] [--programs sort]

CHECKOUT is a checkout of github google-deepmind/tracr; run it in an environment with what
its setup.py asks for (jax, dm-haiku, chex, einops, networkx, numpy). Programs, inputs and
truth are those of `everyformer bench peers`; everyformer itself is not imported.
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

PROGRAMS_FILE = (
    Path(__file__).parents[2] / "src/everyformer/bench/methods/compile/peer_programs.py"
)
SIZES = (5, 8, 12, 16, 32)
BOS = "BOS"
BATCH_NUMBERS = 2e7
"""Numbers of one layer's hidden units and scores that are held at once, about."""

BRACKETS = "(){}"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", "-o", type=Path)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--programs", nargs="*")
    parser.add_argument("--commit", help="of the checkout, where git cannot say it")
    parser.add_argument("--exactness", type=int, default=100, help="mlp_exactness")
    parser.add_argument("--inputs", type=int, help="only so many of the inputs")
    chosen = parser.parse_args()
    sys.path.insert(0, str(chosen.checkout))
    peers = programs_module()
    # "histogram, by value" is the same program as "histogram".
    names = chosen.programs or [k for k in peers.PROGRAMS if k != "histogram, by value"]
    rows: list[dict[str, Any]] = []
    for n, name in itertools.product(chosen.sizes, names):
        program = peers.PROGRAMS[name](n, peers.vocabulary_of(name, n))
        rows.append(row_of(name, program, chosen.exactness, chosen.inputs))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
        if chosen.out:
            said = environment(chosen.checkout, chosen.commit)
            report = {"theme": "peers: tracr", "environment": said, "rows": rows}
            chosen.out.write_text(json.dumps(report, indent=2) + "\n")


def programs_module() -> Any:
    """`peer_programs`, without the package around it."""
    spec = importlib.util.spec_from_file_location("peer_programs", PROGRAMS_FILE)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(PROGRAMS_FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def environment(checkout: Path, commit: str | None) -> dict[str, Any]:
    """Versions, Tracr's commit and date."""
    names = ("jax", "jaxlib", "dm-haiku", "chex", "einops", "networkx", "numpy")
    git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tracr_commit": commit or found.stdout.strip() or None,
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in names},
        "precision": "float32, jax on the CPU",
    }


def rasp_program(name: str, n: int) -> Any:
    """Tracr's program, as its tests call it."""
    from tracr.compiler import lib  # found once the path is set
    from tracr.rasp import rasp

    tokens = rasp.tokens
    makers = {
        "reverse": lambda: lib.make_reverse(tokens),
        "sort": lambda: lib.make_sort(tokens, tokens, max_seq_len=n, min_key=1),
        "sort unique": lambda: lib.make_sort_unique(tokens, tokens),
        "histogram": lib.make_hist,
        "fraction of previous": lambda: lib.make_frac_prevs(tokens == 2),
        "shuffle Dyck-1": lambda: lib.make_shuffle_dyck(pairs=["()"]),
        "shuffle Dyck-2": lambda: lib.make_shuffle_dyck(pairs=["()", "{}"]),
    }
    return makers[name]()


def row_of(
    name: str, program: Any, exactness: int = 100, inputs: int | None = None
) -> dict[str, Any]:
    """One program at one size: tokens 1 .. V, or brackets, after a BOS token."""
    import jax
    from tracr.compiler import compiling

    n, vocabulary = program.n, program.vocabulary
    brackets = "Dyck" in name
    letters = list(BRACKETS[:vocabulary]) if brackets else list(range(1, vocabulary + 1))
    row: dict[str, Any] = {"case": name, "n": n, "V": vocabulary}
    row["mlp_exactness"] = exactness
    started = time.perf_counter()
    try:
        model = compiling.compile_rasp_to_model(
            rasp_program(name, n),
            set(letters),
            n,
            compiler_bos=BOS,
            mlp_exactness=exactness,
        )
    except Exception as error:  # whatever a peer raises is its result
        return row | {"outcome": f"refused: {type(error).__name__}: {error}"}
    config = model.model_config
    row |= {"seconds": time.perf_counter() - started, "layers": config.num_layers}
    row |= {"width": len(model.residual_labels), "heads": config.num_heads}
    row |= {"key_size": config.key_size, "hidden": config.mlp_hidden_size}
    arrays = jax.tree_util.tree_leaves(model.params)
    row["parameters"] = sum(int(a.size) for a in arrays)
    row["nonzeros"] = sum(int(np.count_nonzero(a)) for a in arrays)
    words = program.inputs()[:inputs]
    started = time.perf_counter()
    results = decoded(model, words, letters)
    if name in {"reverse", "sort", "sort unique"}:
        results = results - 1
    exact, gap = program.exact(words, results)
    row |= {"exact": exact, "inputs": len(words), "of": program.number_of_inputs}
    row |= {"largest_gap": gap if np.isfinite(gap) else None}
    row["run_seconds"] = time.perf_counter() - started
    return row | first_wrong(program, words, results)


def decoded(model: Any, words: np.ndarray, letters: list[Any]) -> np.ndarray:
    """What the model gives, without BOS; nan where it is not a number.

    Batches go through the model's own forward pass; the first words also through `apply`,
    which takes one word at a time.
    """
    import jax
    import jax.numpy as jnp

    n = words.shape[1]
    codes = np.array(model.input_encoder.encode([BOS, *letters]))
    encoded = np.concatenate([np.full((len(words), 1), codes[0]), codes[1:][words]], axis=1)
    config = model.model_config
    layer = (n + 1) * max(config.mlp_hidden_size, config.num_heads * config.key_size)
    batch = max(1, int(BATCH_NUMBERS / layer))
    forward = jax.jit(lambda tokens: model.forward(model.params, tokens).unembedded_output)
    decode = model.output_encoder.decode
    found: list[list[float]] = []
    for i in range(0, len(words), batch):
        results = np.asarray(forward(jnp.array(encoded[i : i + batch]))).tolist()
        found += [[number(v) for v in decode(sequence)[1:]] for sequence in results]
    for word, result in zip(words[:5], found, strict=False):
        alone = model.apply([BOS, *(letters[k] for k in word)]).decoded[1:]
        np.testing.assert_allclose([number(v) for v in alone], result, atol=1e-4)
    return np.array(found)


def number(value: Any) -> float:
    """A decoded value as a number; None and the like are nan."""
    return float(value) if isinstance(value, bool | int | float) else float("nan")


def first_wrong(program: Any, words: np.ndarray, results: np.ndarray) -> dict[str, Any]:
    """An input with a wrong result, with both."""
    for word, result in zip(words, results, strict=True):
        if program.exact(word[None], result[None])[0] == 0:
            meant = program.meaning(tuple(word.tolist()))
            wrong = {"input": word.tolist(), "meant": meant}
            given = [v if np.isfinite(v) else None for v in result.tolist()]
            return {"first_wrong": wrong | {"given": given}}
    return {}


if __name__ == "__main__":
    main()
