"""Gaps of contextual mappings (Yun et al. 2020, Definition 5.1 and Section 6)."""

from everyformer.experiments.contextual_gap.cells import cells
from everyformer.experiments.contextual_gap.picture import picture
from everyformer.experiments.expected import load_expected
from everyformer.experiments.experiment import Experiment, synthetic

CONTEXTUAL_GAP = Experiment(
    name="contextual-gap",
    about="gaps of attention, bi-linear projection, convolution and averaging by depth",
    cells=synthetic("contextual-gap", cells),
    expected=load_expected(__name__),
    picture=picture,
    columns={"sequences": "sequences"},
)
