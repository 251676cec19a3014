"""Random bi-linear projections (Yun et al. 2020, Section 6.1 and its footnote)."""

from everyformer.experiments.experiment import Experiment, stored, synthetic
from everyformer.experiments.random_projections.cells import cells
from everyformer.experiments.random_projections.picture import picture

RANDOM_PROJECTIONS = Experiment(
    **stored(__name__),
    about="gaps of Gaussian bi-linear projections by the size of the set, beside a bound",
    cells=synthetic("random-projections", cells, trained=False),
    picture=picture,
    columns={
        "ceiling": "proved, at most",
        "gap_quantile_bound": "gap, proved",
        "gap_quantile_sampled": "gap, 5% quantile",
        "gap_median_sampled": "gap, median",
    },
)
