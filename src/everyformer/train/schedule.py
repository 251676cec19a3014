"""The learning rate, as a function of the step alone."""

import math

from everyformer.train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear from 0 to lr in `warmup` updates, then by `config.decay`.

    With x = (step - warmup) / (steps - warmup), the share of the rest that is done:

        linear          lr (1 - x)
        polynomial      end_lr + (lr - end_lr) (1 - x)
        cosine          end_lr + (lr - end_lr) (1 + cos(pi x)) / 2
        inverse-sqrt    lr sqrt(w / (step + 1)),  w = max(warmup, 1)
        constant        lr

    Example:
        >>> config = TrainConfig(steps=10, batch=1, lr=1.0, warmup=2)
        >>> [round(learning_rate(config, step), 3) for step in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.decay == "constant":
        return config.lr
    if config.decay == "inverse-sqrt":
        return config.lr * math.sqrt(max(config.warmup, 1) / (step + 1))
    if config.decay == "linear":
        return config.lr * (config.steps - step) / (config.steps - config.warmup)
    done = (step - config.warmup) / (config.steps - config.warmup)
    left = 1 - done if config.decay == "polynomial" else (1 + math.cos(math.pi * done)) / 2
    return config.end_lr + (config.lr - config.end_lr) * left
