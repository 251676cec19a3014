"""Formats of pictures, by the ending of a name; drawing is elsewhere."""

from pathlib import Path

from everyformer.errors import InputError

FORMATS = ("png", "pdf", "svg")


def format_of(path: Path) -> str:
    """The format that the name of a picture asks for: png, pdf or svg.

    Raises:
        InputError: If the name ends in something else.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        ends = f"ends in {path.suffix}" if suffix else "has no ending"
        msg = f"The picture {path} {ends}, and the ending decides the format. Give a name"
        raise InputError(f"{msg} that ends in .png, .pdf or .svg.")
    return suffix
