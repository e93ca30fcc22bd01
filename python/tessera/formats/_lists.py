"""Lists for more or fewer queries and heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera._tensors import from_numpy
from tessera.formats._sets import LISTS, fill, once, pairs, read


def clean_lists(lists: Any, num_blocks: Any, *, width: int | None = None) -> Any:
    """The same sets without invalid and repeated ids.

    Args:
        lists: int32 [B, nQ, W] or [B, Hkv, nQ, W].
        num_blocks: an int or integers [B].
        width: entries of a list of the result; None: those of the longest.

    Returns:
        int32 [B, nQ, width] or [B, Hkv, nQ, width], ascending, left-packed, then -1.

    Raises:
        ValueError: a list is longer than width.
    """
    op = "clean_lists"
    array = read(op, "lists", lists, LISTS)
    return from_numpy(fill(op, *pairs(op, array, num_blocks), array.shape[:-1], width), lists)


def share_lists(
    lists: Any,
    num_blocks: Any,
    *,
    block_q: int = 1,
    heads: int | None = None,
    union: bool = False,
    width: int | None = None,
) -> Any:
    """One list in place of several that are equal, or, if asked for, of several that differ: then their union.

    Args:
        lists: int32 [B, n, W] or [B, H, n, W].
        num_blocks: an int or integers [B].
        block_q: consecutive lists that become one; where lists are per token, the queries that share a list.
        heads: heads that remain, of which each takes the place of H / heads consecutive ones; None: H. With 1, [:, 0]
            of the result is the form for all heads.
        union: whether lists that differ become their union, which makes some queries attend blocks that they did not.
        width: as in `clean_lists`.

    Returns:
        int32 [B, nQ, width] or [B, heads, nQ, width], nQ = ceil(n / block_q).

    Raises:
        ValueError: lists that would become one differ, or a list is longer than width.
    """
    op = "share_lists"
    array = read(op, "lists", lists, LISTS)
    requests, given, n, _ = (array if array.ndim == 4 else array[:, None]).shape
    heads = given if heads is None else heads
    if block_q < 1:
        raise ValueError(f"{op}: block_q is {block_q}; expected at least 1")
    if heads != given and (heads < 1 or given % heads):
        raise ValueError(f"{op}: heads is {heads}; expected a divisor of the {given} heads of lists")
    group, shared = given // max(heads, 1), -(-n // block_q)
    row, block = pairs(op, array, num_blocks)
    owner = row // max(n * group, 1) * shared + row % max(n, 1) // block_q  # the shared list that each row becomes
    to, of_all = once(owner, block)
    if not union:
        members = np.tile(group * np.minimum(block_q, n - block_q * np.arange(shared)), requests * heads)
        entries, expected = (np.bincount(rows, minlength=members.size) for rows in (owner, to))
        differ = np.flatnonzero(entries != expected * members)
        if differ.size:
            b, h, i = np.unravel_index(differ[0], (requests, heads, shared))
            raise ValueError(
                f"{op}: lists {i * block_q} to {min(n, (i + 1) * block_q) - 1}, heads {h * group} to"
                f" {(h + 1) * group - 1} of request {b} differ; union=True joins them"
            )
    shape = (requests, heads, shared) if array.ndim == 4 else (requests, shared)
    return from_numpy(fill(op, to, of_all, shape, width), lists)


def spread_lists(lists: Any, num_queries: int, *, block_q: int, heads: int | None = None) -> Any:
    """A list per query token, from lists that queries share: the way back from `share_lists`.

    Args:
        lists: int32 [B, nQ, W] or [B, H, nQ, W].
        num_queries: Sq.
        block_q: query tokens that share a list.
        heads: heads of the result, a multiple of H, of which heads / H consecutive ones get the same lists; None: as
            given.

    Returns:
        int32 [B, Sq, W] or [B, heads, Sq, W], the entries as they stand.

    Raises:
        ValueError: sizes or heads that do not fit the lists; TypeError: lists that are not int32.
    """
    op = "spread_lists"
    array = read(op, "lists", lists, LISTS)
    check_rows(op, array, num_queries, block_q)
    array = np.repeat(array, block_q, axis=-2)[..., :num_queries, :]
    if heads is not None:
        array = repeat_heads(op, array, heads)
    return from_numpy(np.ascontiguousarray(array), lists)


def check_rows(op: str, lists: np.ndarray, num_queries: int, block_q: int) -> None:
    if block_q < 1 or num_queries < 0 or lists.shape[-2] != -(-num_queries // block_q):
        raise ValueError(
            f"{op}: lists has {lists.shape[-2]} lists per request for {num_queries} queries and block_q {block_q};"
            " expected ceil(queries / block_q)"
        )


def repeat_heads(op: str, lists: np.ndarray, heads: int) -> np.ndarray:
    """[B, heads, nQ, W]."""
    lists = lists if lists.ndim == 4 else lists[:, None]
    given = lists.shape[1]
    if given == 0 or heads < given or heads % given:
        raise ValueError(f"{op}: heads is {heads}; expected a multiple of the {given} heads of lists")
    return np.repeat(lists, heads // given, axis=1)
