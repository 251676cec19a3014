"""Attention and what may replace it in BERT (Yun et al. 2020, Table 1 and Figure 1)."""

from everyformer.experiments.experiment import Experiment, stored
from everyformer.experiments.mixers_bert.cells import cells
from everyformer.experiments.mixers_bert.conditions import conditions
from everyformer.experiments.mixers_bert.picture import picture
from everyformer.experiments.mixers_bert.plan import order

MIXERS_BERT = Experiment(
    **stored(__name__),
    about="BERT with averages, bi-linear projections or convolutions for attention",
    cells=cells,
    picture=picture,
    columns={
        "test.nats.mean_sampled": "nats",
        "test.exact.mean_sampled": "exact match",
        "left_plateau_at": "leaves plateau",
        "parameters": "parameters",
        "operations": "operations",
        "wall_s": "seconds",
    },
    conditions=conditions,
    order=order,
    least_seconds=30.0,
)
