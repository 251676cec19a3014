"""Whether a model was called with `output_attentions=True`, or its configuration says so.

Some models do not hand it on to their attention, so hooks on the model hear of it. The
weights then come from plain torch: n x n numbers for each head.
"""

import threading
from typing import Any

from torch import nn


class _Depth(threading.local):
    calls = 0


_DEPTH = _Depth()


def are_wanted() -> bool:
    """Whether a call that wants the weights is at work in this thread."""
    return _DEPTH.calls > 0


def listen(model: nn.Module) -> list[Any]:
    """Hear of calls of a model; gives the handles of the hooks."""
    return [
        model.register_forward_pre_hook(_begin, with_kwargs=True),
        model.register_forward_hook(_end, with_kwargs=True, always_call=True),
    ]


def _asks(model: nn.Module, kwargs: dict[str, Any]) -> bool:
    asked = kwargs.get("output_attentions")
    if asked is None:
        asked = getattr(model.config, "output_attentions", False)
    return bool(asked)


def _begin(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _asks(model, kwargs):
        _DEPTH.calls += 1


def _end(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    if _asks(model, kwargs):  # also after a hook that failed before `_begin`
        _DEPTH.calls = max(0, _DEPTH.calls - 1)
