"""Sparse patterns in translation (Yun et al. 2020, O(n) connections)."""

from everyformer.experiments.experiment import Experiment, stored
from everyformer.experiments.sparse_translation.cells import cells
from everyformer.experiments.sparse_translation.conditions import conditions, summary
from everyformer.experiments.sparse_translation.picture import picture
from everyformer.experiments.sparse_translation.plan import order
from everyformer.experiments.sparse_translation.scoring import completed

SPARSE_TRANSLATION = Experiment(
    **stored(__name__),
    about="translation with strided, fixed, star and random patterns of one density",
    cells=cells,
    picture=picture,
    columns={
        "density": "% of pairs at n",
        "density_of_texts": "% of pairs of the texts",
        "width": "w",
        "translated.test.bleu": "BLEU",
        "translated.test.chrf": "chrF",
        "news.nats": "news nats",
        "translated.news.bleu": "news BLEU",
        "translated.news.chrf": "news chrF",
        "test.nats_other_source.mean_sampled": "nats, other source",
        "parameters": "parameters",
        "step_s_sampled": "seconds an update",
        "wall_s": "seconds",
    },
    conditions=conditions,
    order=order,
    summary=summary,
    least_seconds=30.0,
    completed=completed,
)
