"""The engines. To the library each is an object with `rank`, `size` and two methods:

    exchange(sent, received) -> request    starts messages, lists of (rank, address, bytes); waits for nobody
    wait(request)                          returns when they have all been sent and received

Messages between two ranks arrive in the order in which they were started. A failure of the engine is its own exception, which
the call raises.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

_TAG = 0x7E55  # on the user's own communicator: any number that a program is unlikely to use there

Messages = list[tuple[int, int, int]]


class Mpi:
    """An mpi4py communicator."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def exchange(self, sent: Messages, received: Messages) -> list[Any]:
        requests = [self.comm.Irecv(self._buffer(at, n), source=rank, tag=_TAG) for rank, at, n in received]
        return requests + [self.comm.Isend(self._buffer(at, n), dest=rank, tag=_TAG) for rank, at, n in sent]

    def wait(self, requests: list[Any]) -> None:
        from mpi4py import MPI

        MPI.Request.Waitall(requests)

    @staticmethod
    def _buffer(address: int, size: int) -> list[Any]:
        """In units of which fewer than 2^31 make up the message, since MPI counts with an int."""
        from mpi4py import MPI

        unit = next(n for n in (1, 4, 64, 1024, size) if size % n == 0 and size // n < 2**31)
        return [MPI.buffer.fromaddress(address, size), size // unit, _bytes(unit)]


@cache
def _bytes(count: int) -> Any:
    from mpi4py import MPI

    return MPI.BYTE.Create_contiguous(count).Commit()


class Torch:
    """A torch.distributed process group; None: the default one."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self.dist, self.group = dist, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def exchange(self, sent: Messages, received: Messages) -> list[Any]:
        requests = [self.dist.irecv(self._tensor(at, n), self._global(r), self.group) for r, at, n in received]
        return requests + [self.dist.isend(self._tensor(at, n), self._global(r), self.group) for r, at, n in sent]

    def wait(self, requests: list[Any]) -> None:
        for request in requests:
            request.wait()

    def _global(self, rank: int) -> int:
        return rank if self.group is None else self.dist.get_global_rank(self.group, rank)

    @staticmethod
    def _tensor(address: int, size: int) -> Any:
        import torch

        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def engine_of(group: Any) -> Mpi | Torch:
    """The engine of a group, which is known by the module that made it: neither is imported here for nothing."""
    if isinstance(group, Mpi | Torch):
        return group
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and isinstance(group, mpi.Comm):
        return Mpi(group)
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available():
        if group is None and torch.distributed.is_initialized():
            return Torch(None)
        if isinstance(group, torch.distributed.ProcessGroup):
            return Torch(group)
    if group is None:
        raise ValueError("group is None, and torch.distributed has no default group yet; expected a group")
    raise TypeError(f"group is {group!r}; expected a communicator of mpi4py or a process group of torch.distributed")
