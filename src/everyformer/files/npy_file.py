"""Arrays in .npy files; nothing that stands in one is run."""

from pathlib import Path

import numpy as np


def read_npy(path: Path) -> np.ndarray:
    """The array in a .npy file.

    Raises:
        ValueError: If it is not such a file, or says that it is larger than memory.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except OSError:
            raise
        except Exception as error:  # the header is parsed as Python: many may happen
            msg = str(error) or type(error).__name__
            raise ValueError(msg) from error
