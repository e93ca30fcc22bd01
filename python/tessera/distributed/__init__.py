"""Attention by several processes, over mpi4py or torch.distributed.

All ranks of a group make the same call, and every rank gets the whole result. An operator is called through one of two
functions: `q_parallel`, for ranks that have all keys each, shares out rows; `context_parallel`, for ranks that have some of
the pages of keys each, merges partial results. The library brings no transport and no launcher: a group is an mpi4py
communicator or a torch.distributed process group, however it came about.
"""

from tessera.distributed._parallel import (
    context_parallel,
    context_parallel_prefill,
    q_parallel,
    q_parallel_prefill,
)
from tessera.distributed._plans import gather_pages, own_pages, own_slots, partition

__all__ = [
    "context_parallel",
    "context_parallel_prefill",
    "gather_pages",
    "own_pages",
    "own_slots",
    "partition",
    "q_parallel",
    "q_parallel_prefill",
]
