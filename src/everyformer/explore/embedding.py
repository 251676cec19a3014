"""Numbers and words as text that is safe inside an HTML page."""

import base64
import json
from typing import Any

import numpy as np


def safe_json(value: Any) -> str:
    r"""JSON that can stand in a script element, whatever words it holds.

    `<`, `>` and `&` are written as escapes, so that no text ends the element or begins a
    comment; letters beyond ASCII too, so that U+2028 does not end a line.

    Raises:
        ValueError: If a number is not finite: JSON has no such numbers.

    Example:
        >>> safe_json({"name": "</script>"})
        '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def embedded(array: np.ndarray) -> dict[str, Any]:
    """A float64 array as base64 of its bytes, little-endian, row by row.

    Stacks in which every layer is the same, as those made by broadcasting are, are written
    once: `rows` is 1 then, while `shape` still has the number of layers.
    """
    values = np.asarray(array, dtype="<f8")
    rows = values
    if len(values) > 1 and (values.strides[0] == 0 or (values == values[:1]).all()):
        rows = values[:1]
    text = base64.b64encode(np.ascontiguousarray(rows).tobytes()).decode("ascii")
    return {"shape": list(values.shape), "rows": len(rows), "base64": text}


def finite_float(value: Any) -> float | None:
    """A number as a float; None where it is too large for one, or not a number."""
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None
