"""JSON that has one meaning.

Python's parser takes the last of two equal keys, and numbers that are not numbers. Another
program may take the first, or none. Such a text is refused.
"""

import json
from typing import Any


def read_json(text: bytes | str) -> Any:
    """The value of a JSON text in which no key occurs twice and every number is finite.

    Raises:
        ValueError: If it is not such a text, or nested too deeply to be read.

    Example:
        >>> read_json('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
    """
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError as error:
        msg = "the JSON text is nested too deeply"
        raise ValueError(msg) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        msg = f"the key {twice[:80]!r} occurs twice"
        raise ValueError(msg)
    return found


def _no_number(text: str) -> Any:
    msg = f"{text} is not a number in JSON"
    raise ValueError(msg)
