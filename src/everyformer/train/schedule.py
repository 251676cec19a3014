"""The learning rate, as a function of the step alone."""

from everyformer.train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear from 0 to lr in `warmup` updates, then linear to 0 or constant.

    Example:
        >>> config = TrainConfig(steps=10, batch=1, lr=1.0, warmup=2)
        >>> [round(learning_rate(config, step), 3) for step in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.decay == "constant":
        return config.lr
    return config.lr * (config.steps - step) / (config.steps - config.warmup)
