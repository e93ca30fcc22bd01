"""What the examples share: the group that the job was started with, inputs that are alike on all ranks, checks, a report."""

from __future__ import annotations

import argparse
import datetime
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tessera

WAIT = datetime.timedelta(seconds=120)  # for a rank that does not answer, where the engine can tell


def join(engine: str) -> tuple[Any, int, int]:
    """(group, rank, size) of this process, which mpirun or torchrun has started."""
    if engine == "mpi":
        from mpi4py import MPI

        return MPI.COMM_WORLD, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    import torch.distributed as dist

    if "RANK" not in os.environ:
        sys.exit("start it with torchrun, or with mpirun and --engine mpi")
    dist.init_process_group("gloo", timeout=WAIT)
    return dist.group.WORLD, dist.get_rank(), dist.get_world_size()


def barrier(engine: str, group: Any) -> None:
    if engine == "mpi":
        request = group.Ibarrier()
        while not request.Test():
            time.sleep(5e-4)  # a rank that waits by polling would slow down the one that works on the same core
    else:
        import torch.distributed as dist

        dist.barrier(group)


def leave(engine: str) -> None:
    if engine == "torch":
        import torch.distributed as dist

        dist.destroy_process_group()


def options(text: str, **defaults: int) -> Any:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["mpi", "torch"], default="torch" if "RANK" in os.environ else "mpi")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default: {value}")
    return parser.parse_args()


def lists(rng: Any, tokens: int, block: int, block_q: int, topk: int, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Causal lists of block ids [1, *shape, nQ, topk]: the own block and others at random, ascending, then -1."""
    nq = -(-tokens // block_q)
    ids = np.full((*shape, nq, topk), -1, np.int32)
    for i in np.ndindex(*shape, nq):
        own = min((i[-1] + 1) * block_q, tokens) - 1
        own //= block
        others = rng.choice(own, min(topk - 1, own), replace=False) if own else []
        row = np.sort(np.append(np.asarray(others, np.int32), own))
        ids[(*i, slice(len(row)))] = row
    return ids[None]


def timed(runs: int, before: Callable[[], None], call: Callable[[], Any]) -> tuple[list[float], Any]:
    seconds, result = [], None
    for _ in range(runs):
        before()
        start = time.perf_counter()
        result = call()
        before()  # the slowest rank counts
        seconds.append(time.perf_counter() - start)
    return seconds, result


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16 if array.itemsize == 2 else np.uint32)


def check(rank: int, what: str, good: bool) -> bool:
    if rank == 0 or not good:
        print(f"{'ok' if good else 'FAILED'}: {what}" + ("" if good else f", on rank {rank}"), flush=True)
    return good


def one_thread() -> None:
    tessera.set_num_threads(1)
