"""Index formats of block-sparse attention, and the ways between them.

A list is the set of KV blocks that some queries attend: ids outside [0, num_blocks) are no blocks (-1 is the usual
filler), and a repeated id counts once. Lists that come out are ascending, left-packed, then -1, and as wide as the
longest of them unless `width` says otherwise. Letters as in `tessera`: B requests, Hkv KV heads, Sq query tokens,
N blocks, W entries of a list.

* **lists**, int32 [B, nQ, W] or [B, Hkv, nQ, W]: a list for block_q consecutive queries, nQ = ceil(Sq / block_q), for
  all heads or per KV head; one per token where block_q is 1. What `block_sparse_gqa_prefill` takes, and the hub between
  the other formats.
* **packed**, int32 [Hkv, total_q, W]: a list per token and KV head; request b has rows cu_seqlens_q[b] to
  cu_seqlens_q[b + 1]. `lists_to_packed`.
* **CSR** (k2q), int32 [Hkv, R + 1] and [Hkv, total_q * W]: for each KV block the queries that attend it.
  `packed_to_csr`.
* **BlockMask** of torch.nn.attention.flex_attention: `lists_to_block_mask`.
* **BSR**, int32 [..., nQ + 1] and [..., nnz]: crow_indices and col_indices of torch and SciPy. `lists_to_bsr`.

`share_lists` and `spread_lists` lead from lists for fewer queries and heads to lists for more, and back; `clean_lists`
only puts lists in order.

`num_blocks` is N = ceil(Sk / block_size): an int, or integers [B] where requests differ in length. Tensors are torch
CPU tensors, NumPy or DLPack, and results are of the kind of the first argument. A shape that does not fit, and a
conversion that would lose something, are ValueErrors; indices that are not int32 are a TypeError. All of it is NumPy, at
the cost of a sort of the entries: once per selection, not once per kernel call.
"""

from tessera.formats._block_mask import block_mask_to_lists, lists_to_block_mask
from tessera.formats._bsr import bsr_to_lists, lists_to_bsr
from tessera.formats._csr import csr_to_packed, packed_to_csr
from tessera.formats._lists import clean_lists, share_lists, spread_lists
from tessera.formats._packed import lists_to_packed, packed_to_lists

__all__ = [
    "block_mask_to_lists",
    "bsr_to_lists",
    "clean_lists",
    "csr_to_packed",
    "lists_to_block_mask",
    "lists_to_bsr",
    "lists_to_packed",
    "packed_to_csr",
    "packed_to_lists",
    "share_lists",
    "spread_lists",
]
