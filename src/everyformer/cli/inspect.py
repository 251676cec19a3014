"""`everyformer inspect`: how the tokens of one sequence move through a network."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyformer.cli import options

if TYPE_CHECKING:
    from everyformer.model.network import Network

SHIFTS = ("selective shifts", "chain shifts")
"""The stage that is drawn: of a dense network, and of a sparse one."""


def inspect(
    network: options.NetworkArgument,
    input_file: options.InputOption,
    sequence: Annotated[
        int, typer.Option(metavar="NUMBER", help="Which sequence of the file, from 0.")
    ] = 0,
    picture: Annotated[
        Path | None,
        options.picture(
            "Where to draw the ids against the number of the shift. [default: ids.png "
            "beside the network]"
        ),
    ] = None,
) -> None:
    """Show how the tokens of one sequence move through a network.

    The id of every token before and after each selective shift that moved one (Lemma 6),
    the tokens after each stage of the proof, and a picture of the ids. Of a compiled
    network its program: what each register holds, step by step.
    """
    from everyformer.cli import pictures, tables
    from everyformer.cli.loading import load_network, read_input
    from everyformer.cli.progress import progress_bar
    from everyformer.cli.saving import IDS_FILE, check_parent, new_file, resolved

    folder = network if network.is_dir() else network.parent
    drawing = folder / IDS_FILE if picture is None else picture
    if drawing.suffix != ".png":
        msg = f"--picture {drawing} does not end in .png, the format that is written."
        raise typer.BadParameter(msg)
    check_parent(resolved(drawing), str(drawing))
    loaded = load_network(network)
    sequences = read_input(input_file, loaded)
    sequences = sequences.reshape(-1, *sequences.shape[-2:])
    if not 0 <= sequence < len(sequences):
        msg = f"--sequence {sequence}: {input_file} holds {len(sequences)}, from 0."
        raise typer.BadParameter(msg)
    x = sequences[sequence]
    with progress_bar() as progress:
        prefix = loaded.architecture.num_prefix  # the sequence stands behind it
        stages = [
            replace(step, state=step.state[prefix:]) for step in loaded.trace(x, progress)
        ]
        names = [stage.name for stage in loaded.stages if stage.kind in SHIFTS]
        known = loaded.construction is not None and names
        shifts = loaded.trace_blocks(x, names[0]) if known else ()
    if loaded.program is not None:
        tables.show(*loaded.program.listing, tables.stage_states(stages))
        return
    if not shifts:
        tables.show(tables.stage_states(stages), _why_no_shifts(loaded))
        return
    tables.show(tables.shift_moves(shifts), tables.stage_states(stages))
    with new_file(drawing) as file:
        pictures.save(pictures.moving_ids(shifts, loaded), file)
    tables.show(f"Drew the ids in {drawing}.")


def _why_no_shifts(network: "Network") -> str:
    if network.registers is not None:
        return "A network with registers has no selective shifts, so no ids are drawn."
    if network.architecture.seq_len == 1:
        return "A network for a single token has no selective shifts, so no ids are drawn."
    return "This network was not constructed: it has no ids to draw."
