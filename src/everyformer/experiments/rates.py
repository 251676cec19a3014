"""Short runs at other rates, beside the cells of an experiment: does an order flip?

A label that ends with -half-rate or -twice-rate is of a quarter of the updates, at that
multiple of the rate.
"""

from dataclasses import replace

from everyformer.train.config import TrainConfig

RATES = {"-half-rate": 0.5, "-twice-rate": 2.0}


def at_other_rates(label: str) -> list[str]:
    """A label at each of the rates."""
    return [label + rate for rate in RATES]


def split_rate(label: str) -> tuple[str, float | None]:
    """A label without its rate, and that rate; None for the experiment's own.

    Example:
        >>> split_rate("zinc12k-half-rate"), split_rate("qm9-gap")
        (('zinc12k', 0.5), ('qm9-gap', None))
    """
    for rate, factor in RATES.items():
        if label.endswith(rate):
            return label.removesuffix(rate), factor
    return label, None


def at_rate(config: TrainConfig, factor: float | None) -> TrainConfig:
    """A quarter of the updates at a multiple of the rate; without one, the config."""
    if factor is None:
        return config
    steps, warmup = max(2, config.steps // 4), config.warmup // 4
    return replace(config, steps=steps, warmup=warmup, lr=factor * config.lr)
