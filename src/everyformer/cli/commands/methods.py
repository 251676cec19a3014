"""`everyformer methods`: the constructions, and what can be set."""

EXAMPLE = "everyformer methods"


def methods() -> None:
    """List the methods of construction and their settings.

    A method is chosen by --method NAME; each of its settings is given as --with KEY=VALUE.
    """
    from everyformer.cli import tables
    from everyformer.cli.method_settings import methods_table

    tables.show(methods_table())
