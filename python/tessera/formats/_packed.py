"""Packed rows: the tokens of all requests one after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera._tensors import from_numpy
from tessera.formats._sets import read

PACKED = {3: "[Hkv, total_q, W]"}


def requests(op: str, cu_seqlens_q: Any, total: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cu_seqlens_q [B + 1], the request of each packed token, its number within its request), of `total` tokens."""
    cu = read(op, "cu_seqlens_q", cu_seqlens_q, {1: "[B + 1]"}).astype(np.int64)
    lengths = np.diff(cu)
    if cu.size == 0 or cu[0] != 0 or (lengths < 0).any():
        raise ValueError(f"{op}: cu_seqlens_q does not start with 0 or decreases")
    if total is not None and cu[-1] != total:
        raise ValueError(f"{op}: cu_seqlens_q ends with {cu[-1]}; packed has {total} tokens")
    request = np.repeat(np.arange(lengths.size), lengths)
    return cu, request, np.arange(cu[-1]) - cu[request]


def lists_to_packed(lists: Any, cu_seqlens_q: Any) -> Any:
    """The lists of the tokens that exist, request after request.

    Args:
        lists: int32 [B, Hkv, Sq, W], a list per token; a request's tokens come first, and lists behind them are left
            out.
        cu_seqlens_q: int32 [B + 1], from 0 to total_q; no request has more than Sq tokens.

    Returns:
        int32 [Hkv, total_q, W], the entries as they stand.

    Raises:
        ValueError: sizes that do not fit; TypeError: lists or bounds that are not int32.
    """
    op = "lists_to_packed"
    array = read(op, "lists", lists, {4: "[B, Hkv, Sq, W]"})
    cu, request, token = requests(op, cu_seqlens_q)
    longest = np.diff(cu).max(initial=0)
    if len(array) != cu.size - 1 or array.shape[2] < longest:
        raise ValueError(
            f"{op}: lists has shape {array.shape}; cu_seqlens_q has {cu.size - 1} requests of up to {longest} tokens"
        )
    return from_numpy(np.ascontiguousarray(array.swapaxes(0, 1)[:, request, token]), lists)


def packed_to_lists(packed: Any, cu_seqlens_q: Any) -> Any:
    """The lists of each request on their own.

    Args:
        packed: int32 [Hkv, total_q, W].
        cu_seqlens_q: int32 [B + 1], from 0 to total_q.

    Returns:
        int32 [B, Hkv, Sq, W], Sq the tokens of the longest request; -1 behind the tokens of the others.

    Raises:
        ValueError: sizes that do not fit; TypeError: lists or bounds that are not int32.
    """
    op = "packed_to_lists"
    array = read(op, "packed", packed, PACKED)
    cu, request, token = requests(op, cu_seqlens_q, array.shape[1])
    lists = np.full((cu.size - 1, len(array), np.diff(cu).max(initial=0), array.shape[2]), -1, np.int32)
    lists.swapaxes(0, 1)[:, request, token] = array
    return from_numpy(lists, packed)
