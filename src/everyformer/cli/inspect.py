"""`everyformer inspect`: how the tokens of one sequence move through a network."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyformer.cli import options
from everyformer.errors import EveryformerError

if TYPE_CHECKING:
    from everyformer.model.insides import Inside
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
            "Where to draw the ids against the number of the shift [default: ids.png "
            "beside the network]."
        ),
    ] = None,
) -> None:
    """Show how the tokens of one sequence move through a network.

    The id of every token before and after each selective shift that moved one (Lemma 6),
    the tokens after each stage of the proof, and a picture of the ids. Of a compiled
    network its program: what each register holds, step by step, which line of your file
    it computes, between which numbers, with the error that the verifier finds, and its
    value beside the ideal one.
    """
    from everyformer.cli import pictures, tables
    from everyformer.cli.loading import load_network, read_input
    from everyformer.cli.progress import progress_bar
    from everyformer.cli.saving import IDS_FILE, check_parent, new_file, resolved
    from everyformer.model.insides import table_of

    folder = network if network.is_dir() else network.parent
    drawing = folder / IDS_FILE if picture is None else picture
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
        traced = loaded.trace(x, progress)
        stages = [replace(step, state=step.state[prefix:]) for step in traced]
        names = [stage.name for stage in loaded.stages if stage.kind in SHIFTS]
        known = loaded.construction is not None and names
        shifts = loaded.trace_blocks(x, names[0]) if known else ()
    if loaded.program is not None:
        found, note = _insides(loaded, traced.insides)
        told = ("", table_of(found), note, "") if found else (note,)
        tables.show(*loaded.program.listing, *told, tables.stage_states(stages))
        return
    if not shifts:
        tables.show(tables.stage_states(stages), _why_no_shifts(loaded))
        return
    tables.show(tables.shift_moves(shifts), tables.stage_states(stages))
    with new_file(drawing) as file:
        pictures.save(pictures.moving_ids(shifts, loaded), file, drawing)
    tables.show(f"Drew the ids in {drawing}.")


def _insides(
    network: "Network", found: "Sequence[Inside]"
) -> "tuple[Sequence[Inside], str]":
    """Every step of a program, with errors that the verifier finds now, and whose they are.

    What is stored beside the weights is what somebody says.
    """
    from everyformer.certify.compile.insides import errors_at
    from everyformer.certify.compile.prove import read_program
    from everyformer.certify.compile.untold import Untold
    from everyformer.certify.undecided import Undecided
    from everyformer.construct.certificates import as_stored
    from everyformer.model.insides import with_errors
    from everyformer.targets.box import Box

    said = network.program
    if said is None or not found:
        return found, "The file does not say which registers to show."
    try:
        box = Box(said.lows, said.highs)
        known = read_program(as_stored(network), box, Untold())
        errors = errors_at(known, ((one.step.slot, one.step.reads) for one in found))
    except (Undecided, EveryformerError, OverflowError, ValueError) as error:
        nothing = [(1.0, 0.0, 0.0, 0.0)] * len(found)
        return with_errors(found, nothing), f"No errors are proved: {error}"
    return with_errors(found, errors), "Intervals, e and r: found by the verifier just now."


def _why_no_shifts(network: "Network") -> str:
    if network.registers is not None:
        return "A network with registers has no selective shifts, so no ids are drawn."
    if network.architecture.seq_len == 1:
        return "A network for a single token has no selective shifts, so no ids are drawn."
    return "This network was not constructed: it has no ids to draw."
