"""One forward pass of MiniMax-M3's shape: shape, type, finite numbers, and the row whose answer is known."""

import sys

import torch
from common import Checks, inputs, options
from tessera.compat import msa_neuron as m3msa


def main() -> int:
    o = options(__doc__, seq=512, heads_q=m3msa.H_Q, heads_kv=m3msa.H_KV, topk=m3msa.TOPK)
    q, k, v, kv_indices = inputs(o, o.seq)
    out = m3msa.block_sparse_gqa_prefill(q, k, v, kv_indices)

    checks = Checks()
    checks.that(f"out is {list(out.shape)} in {out.dtype}", out.shape == q.shape and out.dtype == q.dtype)
    checks.that("all numbers are finite", out.isfinite().all())
    first = v[:, 0].repeat_interleave(o.heads_q // o.heads_kv, dim=1)
    checks.that("the first query sees the first key alone: its output is that value", torch.equal(out[:, 0], first))
    return checks.report()


if __name__ == "__main__":
    sys.exit(main())
