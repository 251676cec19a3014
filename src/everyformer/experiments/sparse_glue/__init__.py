"""Sparse patterns in BERT (Yun et al. 2020, O(n) connections): MNLI and GLUE."""

from everyformer.experiments.experiment import Experiment, stored
from everyformer.experiments.sparse_glue.cells import cells
from everyformer.experiments.sparse_glue.conditions import conditions, summary
from everyformer.experiments.sparse_glue.picture import picture
from everyformer.experiments.sparse_glue.plan import order

SPARSE_GLUE = Experiment(
    **stored(__name__),
    about="BERT with strided, fixed, star and random patterns: MNLI and five GLUE tasks",
    cells=cells,
    picture=picture,
    columns={
        "density": "% of pairs",
        "width": "w",
        "seen": "% within examples",
        "test.nats.mean_sampled": "nats",
        "left_plateau_at": "leaves plateau",
        "parameters": "parameters",
        "wall_s": "seconds",
    },
    conditions=conditions,
    order=order,
    summary=summary,
    least_seconds=20.0,
)
