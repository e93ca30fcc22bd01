"""The bf16 kernel against the f32 NumPy reference (all rows), and out and LSE against double precision (some rows)."""

import sys

from common import Checks, inputs, options
from tessera.check.bounds import out_share
from tessera.compat import msa_neuron as m3msa
from torch.nn.functional import cosine_similarity


def main() -> int:
    o = options(__doc__, seq=1024, heads_q=8, heads_kv=2, topk=4)
    q, k, v, kv_indices = inputs(o, o.seq)
    out = m3msa.block_sparse_gqa_prefill(q, k, v, kv_indices)
    _, l, m = m3msa.block_sparse_gqa_prefill_state(q, k, v, kv_indices)

    reference = m3msa.dense_gqa_reference(q, k, v, kv_indices)
    spread = m3msa.dense_gqa_reference(q, k, v.abs(), kv_indices)
    difference = (out.float() - reference).abs().max()
    cosine = cosine_similarity(out.float(), reference, dim=-1).min()
    print(f"max_abs_diff {difference:.2e}, least cosine of a row {cosine:.7f}; rows with free slots included")

    checks = Checks()
    checks.share("all rows: out against f32", out_share(out.float().numpy(), reference.numpy(), spread.numpy(), "bf16"))
    checks.rows("some rows", q, k, v, kv_indices, out, m + l.log())
    return checks.report()


if __name__ == "__main__":
    sys.exit(main())
