"""Which encodings generalise to longer sequences (Luo et al. 2022, slides, overview)."""

from collections.abc import Mapping
from typing import Any

from everyformer.experiments.claims import load_claims
from everyformer.experiments.expected import load_expected
from everyformer.experiments.experiment import Experiment
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
    name="urpe-lengths",
    about="trained at one length, tested at longer ones: absolute, relative, URPE",
    cells=cells,
    expected=load_expected(__name__),
    picture=picture,
    columns={
        f"test.{metric}@{n}.mean_sampled": f"{metric} {n}"
        for metric in ("accuracy", "nats")
        for n in (32, 64, 128, 256)
    }
    | {"wall_s": "seconds"},
    claims=load_claims(__name__),
    conditions=conditions,
    order=labels_of,
    summary=overview,
)
