"""Perplexity: exp of the nats of a token, or of a word of several tokens."""

import math

from everyformer.train.evaluation import Score


def perplexity(score: Score, tokens: float = 1.0) -> tuple[float, float]:
    """exp of the nats of a word of so many tokens, and its standard error.

    Example:
        >>> perplexity(Score(0.0, 0.5, 8), tokens=2.0)
        (1.0, 1.0)
    """
    found = math.exp(score.mean_sampled * tokens)
    return found, found * tokens * score.standard_error_sampled
