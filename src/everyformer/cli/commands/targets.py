"""`everyformer targets`: the gallery."""

EXAMPLE = "everyformer targets"


def targets() -> None:
    """List the targets that come with everyformer."""
    from everyformer.cli import tables

    tables.show(tables.gallery())
