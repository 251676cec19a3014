"""`everyformer targets`: the gallery."""

from everyformer.cli import tables


def targets() -> None:
    """List the targets that come with everyformer."""
    tables.show(tables.gallery())
