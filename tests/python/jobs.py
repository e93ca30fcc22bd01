"""Jobs of several ranks: with mpirun, or torch.distributed's launcher; a reason where the engine is not installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
# Open MPI starts for root only when told so twice, and more ranks than processors only when told so.
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def missing(engine):
    """Why there is no such engine; None: there is."""
    if engine == "mpi":
        if shutil.which("mpirun") is None:
            return "mpirun is not installed"
        return None if importlib.util.find_spec("mpi4py") else "mpi4py is not installed"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch.distributed

    return None if torch.distributed.is_available() else "this torch has no torch.distributed"


def engines():
    return [
        pytest.param(engine, marks=[pytest.mark.skip(reason=missing(engine))] if missing(engine) else [])
        for engine in ("mpi", "torch")
    ]


def run(engine, ranks, script, *arguments, timeout=300):
    """(exit status, what all ranks have printed). torch.distributed's ranks are started here: its launcher takes as long as
    all else."""
    command = [sys.executable, script, *map(str, arguments)]
    if engine == "mpi":
        done = subprocess.run(
            ["mpirun", "-n", str(ranks), sys.executable, "-m", "mpi4py", *command[1:]],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, env=os.environ | MPI,
        )  # fmt: skip
        return done.returncode, done.stdout
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | job | {"RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    return max(abs(process.returncode) for process in processes), "".join(outputs)
