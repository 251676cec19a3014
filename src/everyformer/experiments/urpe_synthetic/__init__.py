"""Position identification and even token prediction (Luo et al. 2022, Figure 1)."""

from everyformer.experiments.experiment import Experiment, stored, synthetic
from everyformer.experiments.urpe_synthetic.cells import cells
from everyformer.experiments.urpe_synthetic.picture import picture

URPE_SYNTHETIC = Experiment(
    **stored(__name__),
    about="position identification and even token prediction: noPE, T5, URPE and others",
    cells=synthetic("urpe-synthetic", cells),
    picture=picture,
    columns={"chance": "chance", "steps": "updates", "wall_s": "seconds"},
)
