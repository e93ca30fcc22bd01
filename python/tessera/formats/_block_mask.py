"""BlockMask of torch's FlexAttention."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tessera._tensors import from_numpy, to_numpy
from tessera.formats._lists import check_rows, repeat_heads
from tessera.formats._sets import LISTS, fill, pairs, read


def lists_to_block_mask(
    lists: Any,
    num_queries: int,
    num_keys: int,
    *,
    block_size: int = 128,
    block_q: int | None = None,
    causal: bool = True,
    q_offset: Any = None,
    heads: int | None = None,
) -> Any:
    """The BlockMask under which `flex_attention` computes what `block_sparse_gqa_prefill` does.

    A listed block is in full_kv_indices if it and its queries are complete and all of these see all of it, else in
    kv_indices. The mask_mod says which blocks are listed as well, for flex_attention looks at nothing else unless it is
    compiled.

    Args:
        lists: int32 [B, nQ, W] or [B, Hkv, nQ, W].
        num_queries: Sq.
        num_keys: Sk.
        block_size: tokens per KV block.
        block_q: query tokens that share a list; None: block_size.
        causal: a query sees keys at positions up to its own; False: all keys.
        q_offset: position of the first query of each request, an int or int32 [B]; None: Sk - Sq.
        heads: heads of the mask, of which heads / Hkv consecutive ones get the same lists; None: as given.
            flex_attention wants 1 or Hq.

    Returns:
        A BlockMask of shape [B, heads, Sq, Sk] and BLOCK_SIZE (block_q, block_size), on the CPU. It takes, as all of
        them do, memory for B x heads x nQ x N blocks.

    Raises:
        ValueError: sizes that do not fit the lists; TypeError: lists that are not int32; ImportError: no torch.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    op = "lists_to_block_mask"
    array = read(op, "lists", lists, LISTS)
    block_q = block_size if block_q is None else block_q
    if block_size < 1:
        raise ValueError(f"{op}: block_size is {block_size}; expected at least 1")
    check_rows(op, array, num_queries, block_q)
    if array.ndim == 3:
        array = array[:, None]
    heads = array.shape[1] if heads is None else heads
    blocks = -(-num_keys // block_size)
    listed = np.zeros((prod(array.shape[:-1]), blocks), bool)
    listed[pairs(op, array, blocks)] = True
    listed = repeat_heads(op, listed.reshape(*array.shape[:-1], blocks), heads)

    offset = np.empty((len(array), 1, 1, 1), np.int64)
    offset[:, 0, 0, 0] = num_keys - num_queries if q_offset is None else to_numpy(q_offset)
    first = np.arange(0, num_queries, block_q)[:, None]  # query of each list
    end = np.arange(1, blocks + 1) * block_size
    complete = (first + block_q <= num_queries) & (end <= num_keys)
    full = listed & complete & ((end <= first + offset + 1) if causal else True)
    chosen, position = torch.from_numpy(listed), torch.from_numpy(offset.ravel())

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        seen = chosen[b, h % heads, q // block_q, kv // block_size]  # one head may stand for all
        return seen & (kv <= q + position[b]) if causal else seen

    def counted(mask: np.ndarray) -> tuple[Any, Any]:
        """Blocks of each row [B, heads, nQ], and all ids, those of the row first [B, heads, nQ, N]."""
        ids = np.argsort(~mask, axis=-1, kind="stable").astype(np.int32)
        return torch.from_numpy(mask.sum(axis=-1, dtype=np.int32)), torch.from_numpy(ids)

    return BlockMask.from_kv_blocks(
        *counted(listed & ~full), *counted(full),
        BLOCK_SIZE=(block_q, block_size), mask_mod=mask_mod, seq_lengths=(num_queries, num_keys),
    )  # fmt: skip


def block_mask_to_lists(block_mask: Any, *, width: int | None = None) -> Any:
    """The blocks of a BlockMask, the partial and the full ones together.

    A list cannot say what a mask_mod hides inside a block. If that is causality, the attention over the lists is told
    so; anything else is lost.

    Args:
        block_mask: a BlockMask of shape [B, H, Sq, Sk].
        width: as in `clean_lists`.

    Returns:
        int32 [B, H, nQ, width], a torch tensor; its block_q and block_size are block_mask.BLOCK_SIZE. For H = Hq,
        `share_lists(..., heads=Hkv)` makes lists per KV head of it.

    Raises:
        ValueError: a list is longer than width.
    """
    op = "block_mask_to_lists"
    parts = [(block_mask.kv_num_blocks, block_mask.kv_indices)]
    if block_mask.full_kv_num_blocks is not None:
        parts.append((block_mask.full_kv_num_blocks, block_mask.full_kv_indices))
    ids = []
    for counts, indices in parts:
        array = read(op, "kv_indices of block_mask", indices, {4: "[B, H, nQ, N]"})
        ids.append(np.where(np.arange(array.shape[-1]) < to_numpy(counts)[..., None], array, -1))
    lists = np.concatenate(ids, axis=-1)
    blocks = -(-block_mask.seq_lengths[1] // block_mask.BLOCK_SIZE[1])
    return from_numpy(fill(op, *pairs(op, lists, blocks), lists.shape[:-1], width), block_mask.kv_indices)
