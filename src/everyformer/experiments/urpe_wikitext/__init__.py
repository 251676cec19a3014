"""Transformer-XL with and without URPE on running text (Luo et al. 2022, slides)."""

from everyformer.experiments.experiment import Experiment, stored
from everyformer.experiments.urpe_wikitext.cells import cells
from everyformer.experiments.urpe_wikitext.conditions import conditions
from everyformer.experiments.urpe_wikitext.picture import picture
from everyformer.experiments.urpe_wikitext.plan import order

URPE_WIKITEXT = Experiment(
    **stored(__name__),
    about="language models with memory: Transformer-XL, and with the gain of URPE",
    cells=cells,
    picture=picture,
    columns={
        "test.nats.mean_sampled": "nats",
        "perplexity.validation": "valid ppl",
        "perplexity.long": "ppl, long memory",
        "parameters": "parameters",
        "step_s_sampled": "seconds an update",
        "wall_s": "seconds",
    },
    conditions=conditions,
    order=order,
    least_seconds=30.0,
)
