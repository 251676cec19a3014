"""Figure 1 of Luo et al. 2022: equal updates for all arms, two rates, several seeds."""

from collections.abc import Mapping
from typing import Any

from everyformer.experiments.experiment import Experiment, stored, synthetic
from everyformer.experiments.urpe_figure1.cells import cells
from everyformer.experiments.urpe_figure1.picture import picture


def conditions(result: Mapping[str, Any]) -> str:
    """Sizes and schedule of a result."""
    model, train = result["settings"]["model"], result["settings"]["train"]
    return (
        f"n = {result['settings']['task']['seq_len']}, {model['layers']} x {model['dim']}; "
        f"{train['steps']:,} updates of {train['batch']}, rate {train['lr']:g}, tables "
        f"{train['table_lr']:g} times that"
    )


URPE_FIGURE1 = Experiment(
    **stored(__name__),
    about="Figure 1 of Luo et al. 2022 with equal updates for all arms, at two rates",
    cells=synthetic("urpe-figure1", cells, reduced=True),
    picture=picture,
    columns={"chance": "chance", "steps": "updates", "wall_s": "seconds"},
    conditions=conditions,
)
