"""Gaps of contextual mappings (Yun et al. 2020, Definition 5.1 and Section 6)."""

from everyformer.experiments.contextual_gap.cells import cells
from everyformer.experiments.contextual_gap.picture import picture
from everyformer.experiments.experiment import Experiment, stored, synthetic

CONTEXTUAL_GAP = Experiment(
    **stored(__name__),
    about="gaps of attention, bi-linear projection, convolution and averaging by depth",
    cells=synthetic("contextual-gap", cells, trained=False),
    picture=picture,
    columns={"sequences": "sequences"},
)
