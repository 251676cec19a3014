"""Which encodings generalise to longer sequences (Luo et al. 2022, slides, overview)."""

from collections.abc import Mapping
from typing import Any

from everyformer.experiments.experiment import Experiment, stored
from everyformer.experiments.urpe_lengths.cells import cells, labels_of
from everyformer.experiments.urpe_lengths.overview import overview
from everyformer.experiments.urpe_lengths.picture import picture


def conditions(result: Mapping[str, Any]) -> str:
    """Length, updates and text of a result."""
    task, train = result["settings"]["task"], result["settings"]["train"]
    what = f"k = {task['offset']}" if task["name"] == "copy" else task["text"]
    return (
        f"{what}; n = {task['seq_len']} x {train['batch']}, {train['steps']:,} updates, "
        f"rate {train['lr']:g}"
    )


URPE_LENGTHS = Experiment(
    **stored(__name__),
    about="trained at one length, tested at longer ones: absolute, relative, URPE",
    cells=cells,
    picture=picture,
    columns={
        f"test.{metric}@{n}.mean_sampled": f"{metric} {n}"
        for metric in ("accuracy", "nats")
        for n in (32, 64, 128, 256)
    }
    | {"wall_s": "seconds"},
    conditions=conditions,
    order=labels_of,
    summary=overview,
)
