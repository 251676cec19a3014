"""`everyformer run`: evaluate a network on sequences from a file."""

from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.defaults import EXECUTORS
from everyformer.cli.names import check_network
from everyformer.cli.saving import check_parent, new_file, resolved

EXAMPLE = "everyformer run out/ --input x.npy --output y.npy"


def run(
    network: options.NetworkArgument,
    input_file: options.InputOption,
    output_file: Annotated[
        Path,
        typer.Option(
            "--output",
            dir_okay=False,
            metavar="Y.NPY",
            help="Where to write the result, an array of the same shape; replaced if it "
            "exists.",
        ),
    ],
    executor: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How to run it: literal (every block), folded (millions of sequences), "
            "prefix (prefix tokens once for all sequences), reference, exact; auto "
            "chooses.",
        ),
    ] = "auto",
) -> None:
    """Evaluate a network on sequences from a .npy file."""
    if executor not in EXECUTORS:
        names = ", ".join(EXECUTORS)
        msg = f"--executor {executor} does not exist. Choose one of {names}."
        raise typer.BadParameter(msg)
    if output_file.suffix != ".npy":
        msg = f"--output {output_file} does not end in .npy, the format that is written."
        raise typer.BadParameter(msg)
    if output_file.exists() and output_file.samefile(input_file):
        msg = f"--output {output_file} is the input itself, which would be lost."
        raise typer.BadParameter(msg)
    check_parent(resolved(output_file), str(output_file))
    check_network(network)
    import numpy as np

    from everyformer.cli import tables
    from everyformer.cli.loading import load_network, read_input
    from everyformer.cli.progress import progress_bar

    loaded = load_network(network)
    x = read_input(input_file, loaded)
    with progress_bar() as progress, new_file(output_file) as file:
        y: np.ndarray = loaded(x, progress, executor=executor)
        np.save(file, y)
    how = loaded.executor.choose(executor, "cpu")[0]
    tables.show(f"Wrote {output_file}: shape {y.shape}, {y.dtype}, {how} executor.")
