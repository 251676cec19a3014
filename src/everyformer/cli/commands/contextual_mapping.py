"""`everyformer contextual-mapping`: does a network tell all contexts apart?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from everyformer.cli import options
from everyformer.cli.names import check_network

EXAMPLE = "everyformer contextual-mapping out/"


def contextual_mapping(
    network: options.NetworkArgument,
    sequences: Annotated[
        Path | None,
        typer.Option(
            "--sequences",
            exists=True,
            dir_okay=False,
            metavar="X.NPY",
            help="Quantised sequences (count, n, d) to check, in the unit cube, positions "
            "added. [default: those of all cells of the grid]",
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check that ids are a contextual mapping.

    A contextual mapping (Definition 5.1) gives every token of every sequence an id of
    its own: ids within a sequence differ (property 6.1 of Lemma 6), and sequences share
    none (6.2), up to the order of tokens where the network is equivariant. Then ids of
    sequences with different columns lie in one interval (6.3) and all others outside
    (6.4). All sequences are checked, in exact arithmetic on the ids; the smallest gap
    is the least distance of two ids. Exit code 0: PROVED on these sequences. 1:
    REFUTED, with the tokens that collide.
    """
    check_network(network)
    from everyformer.checks.contexts import all_contexts
    from everyformer.checks.contextual_mapping import contextual_mapping as check
    from everyformer.cli import tables
    from everyformer.cli.loading import load_network, read_array

    loaded = load_network(network)
    if sequences is None:
        states, which = all_contexts(loaded), "one for each cell of the grid"
    else:
        states, which = read_array(sequences, "numbers"), f"those of {sequences}"
    found = check(loaded, states)
    made = loaded.construction
    orbits = made is not None and made.theorem == "Theorem 2"
    order = ", up to the order of tokens" if orbits else ""
    words = (f"{found}", f"Sequences: {which}{order}.", *_properties(found, orbits))
    tables.answer({"which": which, **to_json(found)}, *words, as_json=as_json)
    raise typer.Exit(found.verdict.exit_code)


def to_json(found: Any) -> dict[str, Any]:
    """What was found, as a JSON object."""
    gap = found.smallest_gap
    return {
        "verdict": str(found.verdict),
        "sequences": found.sequences,
        "smallest_gap": None if gap is None else str(gap),
        "property_6.1": None if found.within is None else str(found.within),
        "property_6.2": None if found.across is None else str(found.across),
        "properties_6.3_6.4": None if found.stray is None else str(found.stray),
    }


def _properties(found: Any, orbits: bool) -> list[str]:
    """Each property in words, and whether it holds; an interval only Theorem 2 has."""
    rows = [
        ("6.1", "ids within a sequence differ", found.within),
        ("6.2", "sequences share no id", found.across),
    ]
    if orbits:
        said = "ids lie inside the interval if columns differ, else outside"
        rows.append(("6.3, 6.4", said, found.stray))
    return [
        f"  {name:<8}  {said}: {'holds' if witness is None else 'fails'}"
        for name, said, witness in rows
    ]
