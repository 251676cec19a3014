"""Attention and what may replace it in BERT (Yun et al. 2020, Table 1 and Figure 1)."""

from everyformer.experiments.claims import load_claims
from everyformer.experiments.expected import load_expected
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.mixers_bert.cells import cells
from everyformer.experiments.mixers_bert.conditions import conditions
from everyformer.experiments.mixers_bert.picture import picture
from everyformer.experiments.mixers_bert.plan import order

MIXERS_BERT = Experiment(
    name="mixers-bert",
    about="BERT with averages, bi-linear projections or convolutions for attention",
    cells=cells,
    expected=load_expected(__name__),
    picture=picture,
    columns={
        "test.nats.mean_sampled": "nats",
        "test.exact.mean_sampled": "exact match",
        "left_plateau_at": "leaves plateau",
        "parameters": "parameters",
        "operations": "operations",
        "wall_s": "seconds",
    },
    claims=load_claims(__name__),
    conditions=conditions,
    order=order,
    least_seconds=30.0,
)
