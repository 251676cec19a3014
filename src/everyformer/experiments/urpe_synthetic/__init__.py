"""Position identification and even token prediction (Luo et al. 2022, Figure 1)."""

from everyformer.experiments.expected import load_expected
from everyformer.experiments.experiment import Experiment, synthetic
from everyformer.experiments.urpe_synthetic.cells import cells
from everyformer.experiments.urpe_synthetic.picture import picture

URPE_SYNTHETIC = Experiment(
    name="urpe-synthetic",
    about="position identification and even token prediction: noPE, T5, URPE and others",
    cells=synthetic("urpe-synthetic", cells),
    expected=load_expected(__name__),
    picture=picture,
    columns={"chance": "chance", "steps": "updates", "wall_s": "seconds"},
)
