"""Who computes and who owns what: pure functions, which need no group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera import _core
from tessera._tensors import from_numpy, to_numpy

_OWNERSHIPS = ("contiguous", "striped", "by_page")


def partition(work: Sequence[int], parts: int) -> list[int]:
    """Cuts items into runs of nearly equal work, as `q_parallel` does with rows.

    Args:
        work: of each item, at least 0.
        parts: number of runs.

    Returns:
        parts + 1 bounds: run i is items [bounds[i], bounds[i + 1]), and may be empty.

    Raises:
        ValueError: no parts.
    """
    if parts < 1:
        raise ValueError(f"partition: parts is {parts}; expected at least 1")
    return _core.partition(list(work), parts)


def own_pages(
    seqused_k: Any,
    max_pages: int,
    *,
    page_size: int,
    rank: int,
    size: int,
    ownership: str = "striped",
    owners: Any = None,
) -> tuple[Any, int]:
    """The page table of a rank for `context_parallel`.

    Args:
        seqused_k: int32 [B], tokens of each request, those to come included.
        max_pages: width of the table.
        page_size: tokens per page.
        rank, size: of the group.
        ownership: "contiguous": each rank has one run of each request's pages; "striped": page i of request b is that of
            rank (b + i) % size, so that a request may grow; "by_page": as owners says.
        owners: by page: int32 [B, max_pages], the rank of each page.

    Returns:
        (page_table int32 [B, max_pages] of seqused_k's kind, number of own pages): own pages are numbered from 0 on, in the
        order of requests and of pages; all other entries are -1.

    Raises:
        ValueError: shape or option; TypeError: dtype.
    """
    if ownership not in _OWNERSHIPS:
        raise ValueError(f"own_pages: ownership is {ownership!r}; expected one of {', '.join(_OWNERSHIPS)}")
    kind = _OWNERSHIPS.index(ownership)
    return _core.own_pages(seqused_k, max_pages, page_size, rank, size, kind, owners)


def own_slots(page_table: Any, requests: Any, positions: Any, *, page_size: int) -> Any:
    """Where new tokens go: the `slots` of `append_kv`, -1 for those whose page is another rank's.

    Args:
        page_table: int32 [B, max_pages] of the rank.
        requests: int [n], the request of each token.
        positions: int [n], its position in the request.
        page_size: tokens per page.

    Returns:
        int32 [n] of page_table's kind.

    Raises:
        IndexError: a token past the table.
    """
    import numpy as np

    table, b, t = to_numpy(page_table), to_numpy(requests), to_numpy(positions)
    page = table[b, t // page_size]
    return from_numpy(np.where(page < 0, -1, page * page_size + t % page_size).astype(np.int32), page_table)


def gather_pages(tokens: Any, page_table: Any, *, page_size: int) -> Any:
    """A rank's pages, out of all tokens: for tests, and for caches that are filled at once.

    Args:
        tokens: [B, Sk, H, D].
        page_table: int32 [B, max_pages] of the rank.
        page_size: tokens per page.

    Returns:
        [P, H, ps, D] of tokens' kind and dtype, at least one page, as many pages as the table has; slots past Sk are 0.

    Raises:
        ValueError: tokens with another number of axes.
    """
    from tessera._tensors import is_torch

    table = to_numpy(page_table)
    _, length, heads, dim = tokens.shape
    shape = (max(int(table.max(initial=-1)) + 1, 1), heads, page_size, dim)
    if is_torch(tokens):
        pages = tokens.new_zeros(shape)
    else:
        import numpy as np

        pages = np.zeros(shape, tokens.dtype)
    for b, i in zip(*(table >= 0).nonzero(), strict=True):
        first = int(i) * page_size
        rows = tokens[int(b), first : min(first + page_size, length)]
        pages[int(table[b, i]), :, : len(rows)] = rows.swapaxes(0, 1)
    return pages
