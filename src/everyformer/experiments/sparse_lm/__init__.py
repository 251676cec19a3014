"""Sparse patterns in language models (Yun et al. 2020, O(n) connections)."""

from everyformer.experiments.experiment import Experiment, stored
from everyformer.experiments.sparse_lm.cells import cells
from everyformer.experiments.sparse_lm.conditions import conditions, summary
from everyformer.experiments.sparse_lm.picture import picture
from everyformer.experiments.sparse_lm.plan import order

SPARSE_LM = Experiment(
    **stored(__name__),
    about="language models with strided, fixed, star and random patterns of one density",
    cells=cells,
    picture=picture,
    columns={
        "density": "% of pairs",
        "width": "w",
        "test.nats.mean_sampled": "nats per token",
        "test.without_context.mean_sampled": "without context",
        "perplexity.without_context": "ppl without",
        "perplexity.validation": "valid ppl",
        "parameters": "parameters",
    },
    conditions=conditions,
    order=order,
    summary=summary,
    least_seconds=30.0,
)
