"""Block-compressed sparse rows."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tessera._tensors import from_numpy
from tessera.formats._sets import LISTS, block_counts, fill, once, pairs, read


def lists_to_bsr(lists: Any, num_blocks: int) -> tuple[Any, Any]:
    """The structure of the matrix [Sq, Sk] whose blocks [block_q, block_size] are those of the lists.

    Args:
        lists: int32 [nQ, W] for one matrix; [B, nQ, W] or [B, Hkv, nQ, W] for a batch, as torch.sparse_bsr_tensor has
            it.
        num_blocks: columns of blocks.

    Returns:
        crow_indices int32 [..., nQ + 1]: 0, then the running sum of the lists' lengths.
        col_indices int32 [..., nnz]: the lists one after another, each ascending.

    Raises:
        ValueError: the matrices of a batch hold different numbers of blocks. No batch of BSR matrices can.
    """
    op = "lists_to_bsr"
    array = read(op, "lists", lists, {2: "[nQ, W]", **LISTS})
    *batch, rows, _ = array.shape
    row, block = pairs(op, array, num_blocks)
    crow = np.zeros((*batch, rows + 1), np.int32)
    lengths = np.bincount(row, minlength=prod(array.shape[:-1])).reshape(*batch, rows)
    np.cumsum(lengths, axis=-1, out=crow[..., 1:])
    nnz = crow[..., -1]
    if nnz.size and nnz.min() < nnz.max():
        raise ValueError(
            f"{op}: the matrices of lists hold {nnz.min()} to {nnz.max()} blocks, those of a batch equally many;"
            " convert them one by one"
        )
    col = block.astype(np.int32).reshape(*batch, nnz.max(initial=0))
    return from_numpy(crow, lists), from_numpy(col, lists)


def bsr_to_lists(crow_indices: Any, col_indices: Any, num_blocks: int, *, width: int | None = None) -> Any:
    """The lists of the rows of blocks: the way back from `lists_to_bsr`.

    Args:
        crow_indices: int32 or int64 [nQ + 1], [B, nQ + 1] or [B, Hkv, nQ + 1].
        col_indices: of the same dtype, [..., nnz].
        num_blocks: columns of blocks.
        width: as in `clean_lists`.

    Returns:
        int32 [..., nQ, width].

    Raises:
        ValueError: shapes or crow_indices that do not fit, or a list longer than width; TypeError: other integers.
    """
    op = "bsr_to_lists"
    dtypes = ("int32", "int64")
    crow = read(op, "crow_indices", crow_indices, {1: "[nQ + 1]", 2: "[B, nQ + 1]", 3: "[B, Hkv, nQ + 1]"}, dtypes)
    col = read(op, "col_indices", col_indices, {crow.ndim: "as many as crow_indices"}, dtypes)
    if crow.shape[:-1] != col.shape[:-1] or crow.shape[-1] == 0:
        raise ValueError(
            f"{op}: crow_indices has shape {crow.shape} and col_indices {col.shape};"
            " expected [..., nQ + 1] and [..., nnz]"
        )
    lengths = np.diff(crow, axis=-1)
    if (crow[..., 0] != 0).any() or (lengths < 0).any() or (crow[..., -1] != col.shape[-1]).any():
        raise ValueError(f"{op}: crow_indices does not rise from 0 to {col.shape[-1]}, the entries of col_indices")
    row, col = np.repeat(np.arange(lengths.size), lengths.ravel()), col.ravel()
    keep = (col >= 0) & (col < block_counts(op, num_blocks, 1))
    return from_numpy(fill(op, *once(row[keep], col[keep]), lengths.shape, width), crow_indices)
