"""`everyformer demo`: the whole way on one example."""

import shlex
from pathlib import Path

import numpy as np

from everyformer.cli import options
from everyformer.cli.saving import (
    CERTIFICATE_FILES,
    IDS_FILE,
    PLOT_FILE,
    check_new_folder,
    new_folder,
)
from everyformer.files.names import NETWORK_FILE

EXAMPLE = "everyformer demo"

INPUT_FILE = "x.npy"
SEED = 2029
EXPLANATION = (
    "The network is constant on cells, and right at their centres. It returns 0\n"
    "outside the box and where two tokens share a cell; a finer grid has fewer such."
)


def swap_mean(x: np.ndarray) -> np.ndarray:
    """The mean of the tokens minus half the token."""
    return x.mean(-2, keepdims=True) - 0.5 * x


def demo(
    out: options.ResultFolderOption = Path("everyformer-demo"),
) -> None:
    """Build, run and draw a small network, as an example.

    The target is swap_mean, the mean of the tokens minus half the token, of
    three tokens on a grid of sixteen cells. Prints what the network costs, the function
    beside the network at some inputs, and the bound.
    """
    if (out / NETWORK_FILE).exists() and not (out / INPUT_FILE).exists():
        msg = (
            f"{out} holds a network that is not of this demo. Give another folder (--out)."
        )
        raise FileExistsError(msg)
    own = CERTIFICATE_FILES | {NETWORK_FILE, PLOT_FILE, INPUT_FILE, IDS_FILE}
    check_new_folder(out, own, overwrite=True)
    from everyformer.cli import pictures, tables
    from everyformer.cli.progress import progress_bar
    from everyformer.construct.method import plan_table
    from everyformer.construct.pipeline import construct
    from everyformer.targets.target import Target

    target = Target(swap_mean, seq_len=3, d_model=1, lipschitz=1.5, equivariant=True)
    notes, x = demo_inputs()
    with progress_bar() as progress, new_folder(out, own, overwrite=True) as folder:
        built = construct(target, grid=16, progress=progress)
        g = built.network(x, progress=progress)
        built.save(folder)
        np.save(folder / INPUT_FILE, x)
        with (folder / PLOT_FILE).open("wb") as file:
            pictures.save(pictures.along_a_line(target, built.network, progress), file)
    tables.show(
        plan_table(built.plan, target.name), "", tables.comparison(notes, x, target(x), g)
    )
    tables.show("", EXPLANATION, "")
    tables.show(tables.claimed(str(built.certificate)), "", f"Picture: {out / PLOT_FILE}")
    given, rows = shlex.quote(str(out)), shlex.quote(str(out / INPUT_FILE))
    tables.show(f"Check the bound: everyformer verify {given}")
    tables.show(f"Look inside: everyformer inspect {given} --input {rows}")


def demo_inputs() -> tuple[list[str], np.ndarray]:
    """Eight sequences of three tokens, and what each of them shows."""
    centres = [0.09375, 0.46875, 0.78125]  # (k + 1/2) / 16
    rows: dict[str, list[float]] = {
        "cell centres": centres,
        "same cells": [0.07, 0.44, 0.76],
        "reordered": [centres[2], centres[0], centres[1]],
        "equal tokens": [0.3, 0.3, 0.8],
        "outside [0, 1]": [0.2, 0.5, 1.4],
    }
    random = np.random.default_rng(SEED).random((3, 3))
    rows |= {f"random {i + 1}": row.tolist() for i, row in enumerate(random)}
    return list(rows), np.array(list(rows.values()))[..., None]
