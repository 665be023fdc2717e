"""What a user brings: a Keras model, its loss, and examples as a ``tf.data`` pipeline."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


class ProgramError(ValueError):
    """A program that cannot be used; the message says why and what to do."""


@dataclass
class Program:
    """A training program, made anew in every worker by the user's function of a seed.

    ``examples(epoch)`` gives that epoch's examples one by one, in an order that depends on the
    epoch alone: the trainer forms batches, gives each worker its slice, and after a restart
    skips what was used. ``prepare``, where set, is applied to a worker's own slice of a batch
    and is the place for costly steps. ``train_step(model, batch)`` gives the mean loss of a
    batch; without it, a batch is (inputs, labels) and ``loss(labels, model(inputs))`` is used.
    """

    model: Any
    examples: Callable[[int], Any]
    loss: Callable[[Any, Any], Any] | None = None
    train_step: Callable[[Any, Any], Any] | None = None
    optimizer: Any = None
    """A Keras optimizer; SGD at the run's learning rate when None. Momentum is the trainer's."""
    prepare: Callable[[Any], Any] | None = None
    on_compact: Callable[[], None] | None = None
    """Called by the memory policy, between steps."""

    def batch_loss(self, batch: Any) -> Any:
        """The mean loss of one batch, a scalar."""
        if self.train_step is not None:
            return self.train_step(self.model, batch)
        if self.loss is None:
            raise ProgramError("the program has neither loss nor train_step; give one of them")
        inputs, labels = batch
        return self.loss(labels, self.model(inputs, training=True))


def check_name(name: str) -> tuple[str, str]:
    """File or module, and function; imports nothing, so that it can be asked before a start.

    Raises:
        ProgramError: when the form is wrong or the file is not there.
    """
    where, colon, function = name.rpartition(":")
    if not colon or not function:
        raise ProgramError(f"{name!r} is not FILE.py:FUNCTION or MODULE:FUNCTION")
    if where.endswith(".py") and not Path(where).is_file():
        raise ProgramError(f"{Path(where).resolve()} is not there")
    return where, function


def load_module(name: str) -> tuple[ModuleType, str]:
    """The module of ``path/to/file.py:function`` or ``package.module:function``, and the function.

    Raises:
        ProgramError: when there is none.
    """
    where, function = check_name(name)
    if not where.endswith(".py"):
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise ProgramError(f"{name}: {error}") from error
    else:
        path = Path(where).resolve()
        spec = importlib.util.spec_from_file_location(f"rigcanary_program_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise ProgramError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    if not callable(getattr(module, function, None)):
        raise ProgramError(f"{where} has no function {function!r}")
    return module, function
