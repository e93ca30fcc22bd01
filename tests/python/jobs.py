"""Jobs of several ranks: with mpirun, or torch.distributed's launcher; a reason where the engine is not installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
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
    for engine in ("mpi", "torch"):
        reason = missing(engine)
        yield pytest.param(engine, marks=[pytest.mark.skip(reason=reason)] if reason else [])


def run(engine, ranks, script, *arguments, timeout=300):
    if engine == "mpi":
        launcher = ["mpirun", "-n", str(ranks), sys.executable, "-m", "mpi4py"]
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*launcher, script, *arguments], capture_output=True, text=True, timeout=timeout, env=os.environ | MPI
    )
