"""Attention over the blocks that matter: sparse attention for CPUs.

Functions take torch CPU tensors (bf16, f16, f32, int32), NumPy arrays (bfloat16 as `ml_dtypes.bfloat16`) and any object
with DLPack; they read them in place, strides included, and return the kind they were given. A bad call is a ValueError,
TypeError or NotImplementedError that names the operator and the argument, raised before anything is written.
"""

from tessera._core import __version__
from tessera._host import build_block_kv_indices, build_causal_block_mask, dense_gqa_reference
from tessera._info import explain, get_num_threads, info, set_num_threads
from tessera._kv_cache import append_kv, pack_kv_blocks
from tessera._msa_attention import (
    block_sparse_attention_single_q,
    msa_sparse_attention,
    msa_sparse_decode_attention,
)
from tessera._msa_index import msa_block_scores, msa_select
from tessera._operators import OPERATORS as _OPERATORS
from tessera._operators import trace_as_torch_op as _trace_as_torch_op
from tessera._ops import (
    block_sparse_gqa_prefill,
    block_sparse_gqa_prefill_state,
    cp_merge,
    mass_select,
    merge_states,
    moba_select,
)
from tessera._qsa_attention import qsa_sparse_attention
from tessera._qsa_index import (
    qsa_indexer_mqa_score,
    qsa_mqa,
    qsa_mqa_decode,
    qsa_mqa_prefill,
    qsa_select,
    qsa_select_tokens,
    topk_blocks,
)
from tessera._qsa_keys import qsa_append_keys, qsa_compress_keys, qsa_expand_blocks, qsa_screen_keys

__all__ = [
    "__version__",
    "append_kv",
    "block_sparse_attention_single_q",
    "block_sparse_gqa_prefill",
    "block_sparse_gqa_prefill_state",
    "build_block_kv_indices",
    "build_causal_block_mask",
    "cp_merge",
    "dense_gqa_reference",
    "explain",
    "get_num_threads",
    "info",
    "mass_select",
    "merge_states",
    "moba_select",
    "msa_block_scores",
    "msa_select",
    "msa_sparse_attention",
    "msa_sparse_decode_attention",
    "pack_kv_blocks",
    "qsa_append_keys",
    "qsa_compress_keys",
    "qsa_expand_blocks",
    "qsa_indexer_mqa_score",
    "qsa_mqa",
    "qsa_mqa_decode",
    "qsa_mqa_prefill",
    "qsa_screen_keys",
    "qsa_select",
    "qsa_select_tokens",
    "qsa_sparse_attention",
    "set_num_threads",
    "topk_blocks",
]

for _name in _OPERATORS:
    _trace_as_torch_op(globals()[_name])
