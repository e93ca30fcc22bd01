"""Queries split over processes: each has a slice of them, all keys, and one thread; the same bits as one process."""

import sys
from functools import partial
from statistics import median
from typing import Any

import tessera
import torch
import torch.multiprocessing as mp
from common import Checks, inputs, options, timed
from tessera.compat import msa_neuron as m3msa

WAIT_SECONDS = 120  # for the slowest process to start


def work(rank: int, processes: int, runs: int, problem: Any, out: Any, seconds: Any, barrier: Any) -> None:
    """One process: writes its rows of out and its row of seconds, which all processes share."""
    tessera.set_num_threads(1)
    q, k, v, kv_indices = problem
    blocks = kv_indices.shape[1]
    lists = slice(blocks * rank // processes, blocks * (rank + 1) // processes)
    rows = slice(lists.start * m3msa.BS, lists.stop * m3msa.BS)
    prefill = partial(
        tessera.block_sparse_gqa_prefill,
        q[:, rows],
        k,
        v,
        kv_indices[:, lists],
        q_offset=rows.start,  # position of the slice's first query among the keys
        out=out[:, rows],
    )
    seconds[rank] = torch.tensor(timed(runs, prefill, before=lambda: barrier.wait(WAIT_SECONDS))[0])


def main() -> int:
    o = options(__doc__, seq=2048, heads_q=16, heads_kv=1, topk=m3msa.TOPK, processes=2, runs=3)
    problem = inputs(o, o.seq)
    tessera.set_num_threads(1)
    alone, whole = timed(o.runs, partial(m3msa.block_sparse_gqa_prefill, *problem))

    out, seconds = torch.full_like(whole, torch.nan), torch.zeros(o.processes, o.runs)
    for tensor in (*problem, out, seconds):
        tensor.share_memory_()
    barrier = mp.get_context("spawn").Barrier(o.processes)
    mp.spawn(work, (o.processes, o.runs, problem, out, seconds, barrier), nprocs=o.processes)

    one, several = median(alone), seconds.max(dim=0).values.median().item()
    print(f"1 process {one * 1e3:.1f} ms, {o.processes} processes {several * 1e3:.1f} ms: {one / several:.2f}x")
    print(f"efficiency {one / several / o.processes:.0%}")
    checks = Checks()
    checks.that("the same bits as one process", torch.equal(out.view(torch.int16), whole.view(torch.int16)))
    checks.rows("some rows", *problem, whole)
    return checks.report()


if __name__ == "__main__":
    sys.exit(main())
