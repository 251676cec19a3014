"""All experiments, by name."""

from everyformer.errors import TrainingError
from everyformer.experiments.contextual_gap import CONTEXTUAL_GAP
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.mixers_bert import MIXERS_BERT
from everyformer.experiments.random_projections import RANDOM_PROJECTIONS
from everyformer.experiments.sparse_copying import SPARSE_COPYING
from everyformer.experiments.sparse_glue import SPARSE_GLUE
from everyformer.experiments.sparse_lm import SPARSE_LM
from everyformer.experiments.sparse_translation import SPARSE_TRANSLATION
from everyformer.experiments.urpe_figure1 import URPE_FIGURE1
from everyformer.experiments.urpe_images import URPE_IMAGES
from everyformer.experiments.urpe_lengths import URPE_LENGTHS
from everyformer.experiments.urpe_molecules import URPE_QM9, URPE_ZINC
from everyformer.experiments.urpe_synthetic import URPE_SYNTHETIC
from everyformer.experiments.urpe_wikitext import URPE_WIKITEXT

EXPERIMENTS = {
    found.name: found
    for found in (
        URPE_SYNTHETIC,
        SPARSE_COPYING,
        CONTEXTUAL_GAP,
        RANDOM_PROJECTIONS,
        MIXERS_BERT,
        URPE_FIGURE1,
        URPE_LENGTHS,
        URPE_IMAGES,
        URPE_WIKITEXT,
        URPE_ZINC,
        URPE_QM9,
        SPARSE_LM,
        SPARSE_GLUE,
        SPARSE_TRANSLATION,
    )
}


def experiment_by_name(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        TrainingError: If no experiment has that name.
    """
    if name not in EXPERIMENTS:
        msg = f"{name!r} is not an experiment. There are {', '.join(EXPERIMENTS)}."
        raise TrainingError(msg)
    return EXPERIMENTS[name]
