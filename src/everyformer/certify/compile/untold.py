"""An algebra that tells nothing: for errors alone, without what is computed."""

from typing import Any


class Untold:
    """Every term is the same."""

    def _nothing(self, *parts: Any) -> None:
        """The term of anything."""

    constant = entry = affine = mul = power = maximum = minimum = softmax_average = _nothing
    abs = relu = exp = log = sin = cos = tanh = logistic = _nothing
