"""What the files of a constructed network are called, and a look whether they are there."""

from pathlib import Path

NETWORK_FILE = "network.safetensors"
CERTIFICATE_FILE = "certificate.json"
VALUES_FILE = "target_values.npy"


def check_there(path: Path) -> None:
    """Refuse the path of a file that is not there.

    Raises:
        FileNotFoundError: With where such files come from.
    """
    if not path.is_file():
        msg = f"There is no file {path}. Give a folder that `everyformer construct` wrote."
        raise FileNotFoundError(msg)
