"""Which way calls of our attention take."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from everyformer.layers.hugging_face import attend


@contextmanager
def spied() -> Generator[list[str]]:
    """Which path each call takes."""
    ways: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("toeplitz_attention", "_plainly"):
            real = getattr(attend, name)

            def spy(*args: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
                ways.append(_name)
                return _real(*args, **more)

            patch.setattr(attend, name, spy)
        yield ways
