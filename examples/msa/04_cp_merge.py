"""Context parallel in one process: ranks own parts of the KV blocks, and their states merge into the whole.

Twice: as the original is called, with keys in full length and -1 for the others' blocks; and with a rank's shard alone.
"""

import sys

import tessera
import torch
from common import Checks, inputs, options
from tessera.compat import msa_neuron as m3msa


def main() -> int:
    o = options(__doc__, seq=1024, heads_q=8, heads_kv=2, topk=4, ranks=2)
    q, k, v, kv_indices = inputs(o, o.seq)
    whole = m3msa.block_sparse_gqa_prefill(q, k, v, kv_indices)

    blocks = kv_indices.shape[1]
    full_length, shards = [], []
    for rank in range(o.ranks):
        first, end = blocks * rank // o.ranks, blocks * (rank + 1) // o.ranks
        owned = (kv_indices >= first) & (kv_indices < end)
        local = kv_indices.masked_fill(~owned, m3msa.SENTINEL)
        full_length.append(m3msa.block_sparse_gqa_prefill_state(q, k, v, local))

        keys = slice(first * m3msa.BS, end * m3msa.BS)
        local = (kv_indices - first).masked_fill(~owned, m3msa.SENTINEL)
        position = -keys.start  # of the first query, counted from the shard's first key
        shards.append(tessera.block_sparse_gqa_prefill_state(q, k[:, keys], v[:, keys], local, q_offset=position))

    checks = Checks()
    for name, states in (("keys in full length", full_length), ("shards", shards)):
        merged = m3msa.cp_merge(states, output_dtype=torch.bfloat16)
        lse = torch.stack([m + l.log() for _, l, m in states]).logsumexp(0)
        print(f"{name}: {o.ranks} ranks against one, max_abs_diff {(merged.float() - whole.float()).abs().max():.2e}")
        checks.rows(name, q, k, v, kv_indices, merged, lse)
    return checks.report()


if __name__ == "__main__":
    sys.exit(main())
