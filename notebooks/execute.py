"""Runs the notebooks from the top and keeps what they show: ``python notebooks/execute.py [NAME…]``."""

import sys
from pathlib import Path
from typing import Final

import nbformat
from nbclient import NotebookClient

FOLDER: Final = Path(__file__).parent
SECONDS: Final = 900


def execute(path: Path, out: Path) -> None:
    """Run one notebook, write it with its results to ``out``.

    Raises:
        nbclient.exceptions.CellExecutionError: when a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER.parent)}},
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of this run, no result
    nbformat.write(notebook, out)


def main(names: list[str]) -> int:
    """Run all, or those whose names begin so."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or any(path.name.startswith(name) for name in names):
            print(path.name, file=sys.stderr, flush=True)
            execute(path, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
