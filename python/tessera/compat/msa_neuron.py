"""jburtoft/minimax-m3-msa-neuron-kernels v1.0.0 on CPUs: the prefill attention of MiniMax-M3 over chosen KV blocks.

    from tessera.compat import msa_neuron as m3msa

takes the place of `kernels.get_kernel(...)`; tensors are torch CPU tensors or NumPy arrays, in bf16, f16 or f32.

Where results differ from the original's:

- A slot of -1 is absent. The original fills it with zeros, so that it takes a share exp(0) of the softmax and shrinks
  the output, by O(1/TOPK); that is a limit of its DMA, and its own reference does not do it. So rows with free slots,
  and states merged from ranks that own a part of the blocks, are exact here. A row without any key is 0, not NaN.
- A list is a set: a repeated id counts once, one past the last block is skipped, and the local block may stand in any
  slot. A listed block behind the query's own is not seen; the original masks the diagonal block alone.
- The softmax scale is honoured; the original raises NotImplementedError for any but 1/sqrt(D).

Limits of the original that do not exist here: S_q == S_k (with fewer queries than keys the last query meets the last
key, as in a later chunk of a prefill, or in decode), S_q % 256 == 0, D = 128, verified head counts. Lists may also be
per KV head, [B, H_kv, nQ, W]. Its `_kernel` entry points, which are launched on NeuronCores, are left out.

`block_sparse_attention_single_q`, `cp_merge`, `build_block_kv_indices`, `build_causal_block_mask` and
`dense_gqa_reference` are those of `tessera`; the single query block is the last of the keys unless `q_offset` says
where it lies. `tessera` has the other two under the same names with more options: block sizes, positions, LSE, outputs
in place.
"""

from __future__ import annotations

from typing import Any

import tessera
from tessera import (
    block_sparse_attention_single_q,
    build_block_kv_indices,
    build_causal_block_mask,
    cp_merge,
    dense_gqa_reference,
)

__all__ = [
    "BS",
    "H_KV",
    "H_Q",
    "LNC_DEGREE",
    "SENTINEL",
    "TOPK",
    "D",
    "block_sparse_attention_single_q",
    "block_sparse_gqa_prefill",
    "block_sparse_gqa_prefill_state",
    "build_block_kv_indices",
    "build_causal_block_mask",
    "cp_merge",
    "dense_gqa_reference",
]

BS = 128  # tokens per KV block, and per query block
D = 128  # head dimension of MiniMax-M3, as the other shapes below; any other works
H_Q = 64
H_KV = 4
TOPK = 16
LNC_DEGREE = 2  # SPMD degree on trn2; without a meaning here
SENTINEL = -1  # an unused slot of a list


def block_sparse_gqa_prefill(q: Any, k: Any, v: Any, kv_indices: Any, softmax_scale: float | None = None) -> Any:
    """Causal attention of each block of BS queries over the KV blocks of its list: `tessera.block_sparse_gqa_prefill`.

    Args:
        q: [B, S_q, H_q, D].
        k, v: [B, S_k, H_kv, D], q's dtype.
        kv_indices: int32 [B, ceil(S_q / BS), W], -1 for an unused slot.
        softmax_scale: factor on the scores; None: 1/sqrt(D).

    Returns:
        [B, S_q, H_q, D] of q's dtype and kind.

    Raises:
        As `tessera.block_sparse_gqa_prefill`.
    """
    return tessera.block_sparse_gqa_prefill(q, k, v, kv_indices, block_size=BS, softmax_scale=softmax_scale)


def block_sparse_gqa_prefill_state(
    q: Any, k: Any, v: Any, kv_indices: Any, softmax_scale: float | None = None
) -> tuple[Any, Any, Any]:
    """The softmax states of `block_sparse_gqa_prefill` for `cp_merge`: `tessera.block_sparse_gqa_prefill_state`.

    A rank passes k and v in full length and -1 for the blocks that it does not own; what is stored there is not read.
    To pass the rank's shard alone, use tessera's function, which takes the position of the first query (`q_offset`).

    Args:
        q, k, v, kv_indices, softmax_scale: as in `block_sparse_gqa_prefill`.

    Returns:
        (o [B, S_q, H_q, D], l [B, S_q, H_q], m [B, S_q, H_q]), f32, o not normalised; (0, 0, -inf) in rows whose keys
        are all on other ranks.

    Raises:
        ValueError: k is shorter than q: a shard, of which nobody said where it lies.
    """
    queries, keys = (getattr(x, "shape", ())[1:2] for x in (q, k))
    if queries and keys and keys < queries:
        raise ValueError(
            f"block_sparse_gqa_prefill_state: k has {keys[0]} keys for {queries[0]} queries; pass k and v in full"
            " length, or a shard to tessera.block_sparse_gqa_prefill_state with q_offset"
        )
    return tessera.block_sparse_gqa_prefill_state(q, k, v, kv_indices, block_size=BS, softmax_scale=softmax_scale)
