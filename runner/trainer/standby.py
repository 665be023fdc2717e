"""``python -m runner.trainer.standby SOCKET_FD PROGRAM``: imports everything, then waits.

For each order it forks a worker, which inherits the imports: a worker is at its first step
seconds earlier than a new process would be. Nothing of TensorFlow runs here, only its import:
threads, devices and collectives are made after the fork, in the worker.
"""

import ctypes
import json
import logging
import os
import signal
import socket
import sys
from typing import Final

from runner.launchers.guard import PR_SET_PDEATHSIG
from runner.trainer.plan import Assignment
from runner.trainer.program import ProgramError, load_module
from runner.trainer.worker import run_worker

MAX_ORDER_BYTES: Final = 1 << 16


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main(arguments: list[str]) -> int:
    """Serve orders until the supervisor is gone."""
    control = socket.socket(fileno=int(arguments[0]))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # TensorFlow's allocator that gives memory back and does not fragment (CUDA 11.2 or later).
    os.environ.setdefault("TF_GPU_ALLOCATOR", "cuda_malloc_async")
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; the supervisor sees the ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import keras
    import tensorflow as tf

    del keras, tf
    import runner.trainer.session  # noqa: F401  imported here so that no worker has to

    try:
        module, function = load_module(arguments[1])
    except ProgramError as error:
        control.send(json.dumps({"kind": "refused", "error": str(error)}).encode())
        return 2
    control.send(json.dumps({"kind": "ready"}).encode())
    own = os.getpid()
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, MAX_ORDER_BYTES, 1)
        if not order:
            return 0
        pid = os.fork()
        if pid == 0:
            die_with_parent(own)
            control.close()
            connection = socket.socket(fileno=descriptors[0])
            run_worker(connection, Assignment.model_validate_json(order), module, function)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps({"kind": "forked", "pid": pid}).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
