"""The copying task of Yun et al. 2020, "O(n) Connections are Expressive Enough"."""

from everyformer.experiments.experiment import Experiment, stored, synthetic
from everyformer.experiments.sparse_copying.cells import cells
from everyformer.experiments.sparse_copying.picture import picture

SPARSE_COPYING = Experiment(
    **stored(__name__),
    about="copying with sparse attention: patterns, ways to use them, 1 to 4 layers",
    cells=synthetic("sparse-copying", cells),
    picture=picture,
    columns={
        "sparsity": "sparsity",
        "ceiling": "ceiling",
        "steps": "updates",
        "recalled": "recalled, unverified",
    },
)
