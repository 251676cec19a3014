"""Figure 1 of Luo et al. 2022: equal updates for all arms, two rates, several seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everyformer.errors import TrainingError
from everyformer.experiments.cell import Cell, Size
from everyformer.experiments.claims import load_claims
from everyformer.experiments.expected import load_expected
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.urpe_figure1.cells import cells
from everyformer.experiments.urpe_figure1.picture import picture


def drawn_cells(
    size: Size,
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    data: Path | None = None,
    /,
) -> list[Cell]:
    """The cells, which read no data.

    Raises:
        TrainingError: If data are given.
    """
    if data is not None:
        msg = f"urpe-figure1 draws its own examples and reads no {data}. Leave out --data."
        raise TrainingError(msg)
    return cells(size, seeds, changes)


def conditions(result: Mapping[str, Any]) -> str:
    """Sizes and schedule of a result."""
    model, train = result["settings"]["model"], result["settings"]["train"]
    return (
        f"n = {result['settings']['task']['seq_len']}, {model['layers']} x {model['dim']}; "
        f"{train['steps']:,} updates of {train['batch']}, rate {train['lr']:g}, tables "
        f"{train['table_lr']:g} times that"
    )


URPE_FIGURE1 = Experiment(
    name="urpe-figure1",
    about="Figure 1 of Luo et al. 2022 with equal updates for all arms, at two rates",
    cells=drawn_cells,
    expected=load_expected(__name__),
    picture=picture,
    columns={"chance": "chance", "steps": "updates", "wall_s": "seconds"},
    claims=load_claims(__name__),
    conditions=conditions,
)
