"""Transformer-XL with and without URPE on running text (Luo et al. 2022, slides)."""

from everyformer.experiments.claims import load_claims
from everyformer.experiments.expected import load_expected
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.urpe_wikitext.cells import cells
from everyformer.experiments.urpe_wikitext.conditions import conditions
from everyformer.experiments.urpe_wikitext.picture import picture
from everyformer.experiments.urpe_wikitext.plan import order

URPE_WIKITEXT = Experiment(
    name="urpe-wikitext",
    about="language models with memory: Transformer-XL, and with the gain of URPE",
    cells=cells,
    expected=load_expected(__name__),
    picture=picture,
    columns={
        "test.nats.mean_sampled": "nats",
        "perplexity.validation": "valid ppl",
        "perplexity.long": "ppl, long memory",
        "parameters": "parameters",
        "step_s_sampled": "seconds an update",
        "wall_s": "seconds",
    },
    claims=load_claims(__name__),
    conditions=conditions,
    order=order,
    least_seconds=30.0,
)
