"""All contexts that a constructed network must tell apart: one sequence for each cell."""

from dataclasses import replace

import numpy as np

from everyformer.errors import InputError
from everyformer.model.network import Network
from everyformer.numerics.rationals import exact_array
from everyformer.papers import YUN2020, implements
from everyformer.targets.box import Box, Grid

MOST_CONTEXTS = 2**17
"""Sequences that are checked at once."""


@implements(YUN2020, "Lemma 6")
def all_contexts(network: Network) -> np.ndarray:
    """The quantised sequences of all cells, as the network's own quantiser makes them.

    The centre of every cell runs through the stages up to the quantiser, positions and all.
    Of a network of Theorem 2, which is equivariant, there is one sequence of each orbit:
    sets of different columns first, then multisets with equal ones.

    Returns:
        Shape (count, n, d), for `contextual_mapping`.

    Raises:
        InputError: If the network has no quantiser, or too many cells.
    """
    made = network.construction
    kinds = [stage.kind for stage in network.stages]
    if made is None or "quantise" not in kinds:
        msg = (
            "This network has no quantiser and no contextual map of Lemma 6. Give one that "
            "`construct` made with --method selective-shift, urpe or sparse."
        )
        raise InputError(msg)
    grid = Grid(made.grid, network.architecture.seq_len, Box(made.lows, made.highs))
    same = made.theorem == "Theorem 2"
    count = grid.num_multisets if same else grid.sequences
    if count > MOST_CONTEXTS:
        msg = (
            f"n={grid.seq_len}, d={grid.d_model}, K={grid.cells} has {count:,} contexts, "
            f"and {MOST_CONTEXTS:,} are checked at most. Give sequences of your own, or a "
            "network with a coarser grid."
        )
        raise InputError(msg)
    columns = grid.all_sequences()
    if same:
        columns = np.concatenate([grid.distinct_sets(), grid.repeated_multisets()])
    first = replace(
        network,
        architecture=replace(network.architecture, pattern=None),
        stages=network.stages[: kinds.index("quantise") + 1],
    )
    centres = grid.centres(columns)
    return first.exact(exact_array(centres)) if network.is_exact else first(centres)
