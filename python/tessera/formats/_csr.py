"""CSR by KV block: for each block the queries that attend it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera._tensors import from_numpy
from tessera.formats._packed import PACKED, requests
from tessera.formats._sets import block_counts, fill, once, pairs, read


def _rows(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(block, request) of each of the R rows: block 0 of all requests that have one, then block 1, and so on."""
    block, request = np.nonzero(np.arange(counts.max(initial=0))[:, None] < counts)
    return block, request


def packed_to_csr(packed: Any, cu_seqlens_q: Any, num_blocks: Any) -> tuple[Any, Any]:
    """For each KV block the queries that attend it (`k2q`), as the KV-major MSA kernels take it.

    A row is one block of one request. Rows are numbered level by level: block 0 of every request that has one, in the
    order of the requests, then block 1 of every request that has one, and so on. Of a single request, row b is block b.

    Args:
        packed: int32 [Hkv, total_q, W]. For lists that queries share, read "list" for "token" here and below.
        cu_seqlens_q: int32 [B + 1], from 0 to total_q.
        num_blocks: an int or integers [B]; R is their sum over the requests.

    Returns:
        row_ptr int32 [Hkv, R + 1]: 0, then the running sum of the rows' lengths.
        q_indices int32 [Hkv, total_q * W]: entries row_ptr[h, r] to row_ptr[h, r + 1] are the tokens whose list of head
        h holds the block of row r, counted from the first token of their request, ascending, each once; -1 behind the
        last row.

    Raises:
        ValueError: sizes that do not fit; TypeError: lists or bounds that are not int32.

    Source: build_k2q_csr of MiniMax-AI/MSA; there a repeated id counts twice and one past the last block is an error.
    """
    op = "packed_to_csr"
    array = read(op, "packed", packed, PACKED)
    heads, total, width = array.shape
    cu, request, token = requests(op, cu_seqlens_q, total)
    counts = block_counts(op, num_blocks, cu.size - 1)
    row_block, row_request = _rows(counts)
    row_of = np.zeros((counts.max(initial=0), counts.size), np.int64)
    row_of[row_block, row_request] = np.arange(row_block.size)

    at, block = pairs(op, array.swapaxes(0, 1), counts[request])  # by token, then head
    at, head = at // max(heads, 1), at % max(heads, 1)
    row = head * row_block.size + row_of[block, request[at]]
    lengths = np.bincount(row, minlength=heads * row_block.size).reshape(heads, row_block.size)
    row_ptr = np.zeros((heads, row_block.size + 1), np.int32)
    np.cumsum(lengths, axis=1, out=row_ptr[:, 1:])
    q_indices = np.full((heads, total * width), -1, np.int32)
    q_indices[np.arange(total * width) < row_ptr[:, -1:]] = token[at[np.argsort(row, kind="stable")]]
    return from_numpy(row_ptr, packed), from_numpy(q_indices, packed)


def csr_to_packed(row_ptr: Any, q_indices: Any, cu_seqlens_q: Any, num_blocks: Any, *, width: int | None = None) -> Any:
    """The lists of the queries: the way back from `packed_to_csr`.

    Args:
        row_ptr: int32 [Hkv, R + 1].
        q_indices: int32 [Hkv, n], n at least the last of each row_ptr. The tokens of a row may come in any order; those
            that their request does not have are left out.
        cu_seqlens_q: int32 [B + 1], from 0 to total_q.
        num_blocks: an int or integers [B]; R is their sum over the requests.
        width: as in `clean_lists`.

    Returns:
        int32 [Hkv, total_q, width].

    Raises:
        ValueError: sizes that do not fit, or a list longer than width; TypeError: what is not int32.
    """
    op = "csr_to_packed"
    starts = read(op, "row_ptr", row_ptr, {2: "[Hkv, R + 1]"})
    tokens = read(op, "q_indices", q_indices, {2: "[Hkv, n]"})
    cu, _, _ = requests(op, cu_seqlens_q)
    row_block, row_request = _rows(block_counts(op, num_blocks, cu.size - 1))
    heads, n = tokens.shape
    if starts.shape != (heads, row_block.size + 1):
        raise ValueError(f"{op}: row_ptr has shape {starts.shape}; expected {(heads, row_block.size + 1)}")
    if (starts[:, 0] != 0).any() or (np.diff(starts) < 0).any() or (starts[:, -1] > n).any():
        raise ValueError(f"{op}: row_ptr does not rise from 0 to at most {n}, the entries of q_indices")
    token = tokens[np.arange(n) < starts[:, -1:]]
    head = np.repeat(np.arange(heads), starts[:, -1])
    row = np.repeat(np.tile(np.arange(row_block.size), heads), np.diff(starts).ravel())
    request = row_request[row]
    keep = (token >= 0) & (token < np.diff(cu)[request])
    to, block = once((head * cu[-1] + cu[request] + token)[keep], row_block[row[keep]])
    return from_numpy(fill(op, to, block, (heads, int(cu[-1])), width), row_ptr)
