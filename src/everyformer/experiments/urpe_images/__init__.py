"""Small images in shifted windows: absolute positions, Swin's, URPE (Luo et al. 2022)."""

from collections.abc import Mapping
from typing import Any

from everyformer.experiments.experiment import Experiment, stored
from everyformer.experiments.urpe_images.cells import cells, labels_of
from everyformer.experiments.urpe_images.picture import picture


def conditions(result: Mapping[str, Any]) -> str:
    """Images, updates and rate of a result."""
    task, train = result["settings"]["task"], result["settings"]["train"]
    return (
        f"{task['images']}, margin {task['margin']}; {train['steps']:,} updates of "
        f"{train['batch']}, rate {train['lr']:g}"
    )


URPE_IMAGES = Experiment(
    **stored(__name__),
    about="small images in shifted windows: absolute positions, Swin, Swin with URPE",
    cells=cells,
    picture=picture,
    columns={
        "test.moved.mean_sampled": "moved",
        "parameters": "parameters",
        "wall_s": "seconds",
    },
    conditions=conditions,
    order=labels_of,
)
