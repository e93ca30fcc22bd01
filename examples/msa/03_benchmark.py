"""Milliseconds of a prefill of MiniMax-M3's shape, by length."""

import sys
from functools import partial
from statistics import median

import tessera
from common import Checks, inputs, options, timed
from tessera.compat import msa_neuron as m3msa


def main() -> int:
    o = options(__doc__, seq=[2048, 4096], heads_q=m3msa.H_Q, heads_kv=m3msa.H_KV, topk=m3msa.TOPK, runs=2)
    checks = Checks()
    print(f"{tessera.get_num_threads()} threads, {o.heads_q}/{o.heads_kv} heads of {m3msa.D}")
    print(f"{'seq_len':>8} {'blocks kept':>12} {'ms':>9} {'ms per Q-block':>15}")
    for seq in o.seq:
        q, k, v, kv_indices = inputs(o, seq)
        seconds, out = timed(o.runs, partial(m3msa.block_sparse_gqa_prefill, q, k, v, kv_indices))
        ms, blocks = median(seconds) * 1e3, kv_indices.shape[1]
        print(f"{seq:8} {min(1, o.topk / blocks):12.2%} {ms:9.1f} {ms / blocks:15.2f}")
        checks.rows(f"{seq} tokens", q, k, v, kv_indices, out)
    return checks.report()


if __name__ == "__main__":
    sys.exit(main())
