"""What the scripts share: sizes, inputs, and checks that decide about the exit status."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tessera.check.bounds import AttentionTruth
from tessera.compat import msa_neuron as m3msa

HELP = {
    "seq": "tokens",
    "heads_q": "query heads",
    "heads_kv": "KV heads",
    "topk": "KV blocks of 128 tokens per query block, its own included",
    "runs": "timed runs after a warm one; the median counts",
    "ranks": "holders of a part of the KV blocks each",
    "processes": "processes with a slice of the queries and one thread each",
}


def options(about: str, **sizes: Any) -> argparse.Namespace:
    """The command line: an integer option per size, several integers where its default is a list."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default in sizes.items():
        several = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=HELP[name], **several)
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers")
    return parser.parse_args()


def inputs(o: argparse.Namespace, seq: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [1, seq, Hq, D], k and v [1, seq, Hkv, D] in bf16, and kv_indices int32 [1, nQ, topk].

    A list is what an indexer gives: the query block's own block and others before it, here at random. The first
    topk - 1 query blocks have fewer than topk blocks to choose from, and free slots.
    """
    dice = torch.Generator().manual_seed(o.seed)
    q, k, v = (
        torch.randn(1, seq, heads, m3msa.D, generator=dice).to(torch.bfloat16)
        for heads in (o.heads_q, o.heads_kv, o.heads_kv)
    )
    blocks = -(-seq // m3msa.BS)
    score = (
        torch.rand(blocks, blocks, generator=dice)
        .fill_diagonal_(2)
        .masked_fill(torch.ones(blocks, blocks).triu(1) > 0, -1)
    )
    best = score.topk(min(o.topk, blocks))
    keep_mask = torch.zeros(1, blocks, blocks, dtype=torch.bool)
    keep_mask[0].scatter_(1, best.indices, best.values >= 0)
    return q, k, v, m3msa.build_block_kv_indices(keep_mask, o.topk)


def timed(runs: int, call: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> tuple[list[float], Any]:
    """Seconds of each run after a warm one, and the last result; `before` is called before each run, and not timed."""
    seconds = []
    for _ in range(1 + runs):
        before()
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:], result


class Checks:
    """What was checked, to be printed at the end, and whether all of it held."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.status = 0

    def that(self, text: str, holds: Any) -> None:
        self.lines.append(f"{'ok    ' if holds else 'FAILED'} {text}")
        if not holds:
            self.status = 1

    def share(self, what: str, share: float) -> None:
        self.that(f"{what}: largest error is {share:.3g} of its bound", share <= 1)

    def rows(self, what: str, q: Any, k: Any, v: Any, kv_indices: Any, out: Any, lse: Any = None) -> None:
        """Absolute errors, against double precision, of some rows with the first and the last among them.

        The bound of out is 2^-8 sum_j p_j |v_j| and half a unit in the last place of bf16; that of the LSE 1e-4. A
        cosine would not do: it is blind to a factor.
        """
        k, v = (x.float().numpy() for x in (k, v))
        of_out, of_lse = [], []
        for t in np.unique(np.linspace(0, q.shape[1] - 1, 16).astype(int)):
            row, block = slice(t, t + 1), slice(t // m3msa.BS, t // m3msa.BS + 1)
            truth = AttentionTruth(q[:, row].float().numpy(), k, v, kv_indices[:, block].numpy(), q_offset=int(t))
            of_out.append(truth.out_share(out[:, row].float().numpy(), "bf16"))
            if lse is not None:
                of_lse.append(truth.lse_share(lse[:, row].numpy(), "bf16"))
        self.share(f"{what}: out against double precision", max(of_out))
        if lse is not None:
            self.share(f"{what}: LSE against double precision", max(of_lse))

    def report(self) -> int:
        """The exit status."""
        print("\n".join(self.lines))
        return self.status
