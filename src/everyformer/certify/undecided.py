"""What stops a proof: the stage of the network, and why."""


class Undecided(Exception):  # noqa: N818
    """A step of a proof cannot be taken. Caught by the prover, which answers UNKNOWN.

    Attributes:
        stage: Name of the stage.
        why: What was found there.
    """

    def __init__(self, stage: str, why: str) -> None:
        """Keep both parts; dask sends exceptions by their arguments."""
        super().__init__(stage, why)
        self.stage = stage
        self.why = why

    def __str__(self) -> str:
        """Both parts as text."""
        return f"{self.stage}: {self.why}"
