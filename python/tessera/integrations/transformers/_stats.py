"""What the attention implementation spent and read while somebody was looking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Totals:
    """Sums over the operator calls of one kind."""

    attention_s: float = 0.0  # wall seconds in the attention function, selection excluded
    select_s: float = 0.0  # wall seconds in selection, those of a file's indexer beside the layer included
    keys_read: int = 0  # (query, KV head, key) triples of the listed blocks, causally visible
    keys_dense: int = 0  # the same with all blocks listed
    calls: int = 0


@dataclass
class Stats:
    """Sums of a `collect` block, by kind of call and over both; and the lists chosen, where asked for."""

    prefill: Totals = field(default_factory=Totals)
    decode: Totals = field(default_factory=Totals)
    # Layer -> int32 [B, Hkv, nQ, W] of blocks, per call; of tokens, [B, 1, Q, W], where the model's own indexer selects them.
    selections: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    @property
    def attention_s(self) -> float:
        return self.prefill.attention_s + self.decode.attention_s

    @property
    def select_s(self) -> float:
        return self.prefill.select_s + self.decode.select_s

    @property
    def keys_read(self) -> int:
        return self.prefill.keys_read + self.decode.keys_read

    @property
    def keys_dense(self) -> int:
        return self.prefill.keys_dense + self.decode.keys_dense

    @property
    def calls(self) -> int:
        return self.prefill.calls + self.decode.calls


class Collector:
    def __init__(self, record: bool | Iterable[int]):
        self.stats = Stats()
        self._all_layers = record is True
        self._layers = frozenset() if isinstance(record, bool) else frozenset(record)

    def add_index(self, is_decode: bool, seconds: float) -> None:
        """Index queries and keys of one layer, made before the operators are called."""
        (self.stats.decode if is_decode else self.stats.prefill).select_s += seconds

    def add(
        self,
        is_decode: bool,
        layer: int,
        seconds: tuple[float, float],
        shape: tuple[int, int, int, int],
        lists: torch.Tensor | None,
        block: tuple[int, int],
    ) -> None:
        """One operator call.

        Args:
            seconds: in attention, in selection.
            shape: requests, KV heads, queries, keys.
            lists: int32 [B, Hkv, nQ, W], or [B, 1, nQ, W] for all heads; None if all blocks are listed.
            block: block_size and block_q of the lists.
        """
        requests, kv_heads, queries, keys = shape
        dense = requests * kv_heads * (queries * (keys - queries) + queries * (queries + 1) // 2)
        totals = self.stats.decode if is_decode else self.stats.prefill
        totals.attention_s += seconds[0]
        totals.select_s += seconds[1]
        totals.keys_dense += dense
        shared = 1 if lists is None else kv_heads // lists.shape[1]
        totals.keys_read += dense if lists is None else shared * _visible(lists, queries, keys, *block)
        totals.calls += 1
        if lists is not None and (self._all_layers or layer in self._layers):
            self.stats.selections.setdefault(layer, []).append(lists)


def _visible(lists: torch.Tensor, queries: int, keys: int, block_size: int, block_q: int) -> int:
    """Keys that the queries see in their listed blocks. Ids of a list are distinct."""
    first = torch.arange(0, queries, block_q)
    last = (first + block_q - 1).clamp(max=queries - 1)
    # A query at position p sees p + 1 - start of the keys from a block's start on, at least 0 and at most block_size;
    # summed over consecutive positions that is a difference of two triangle numbers, continued by a straight line.
    start = lists.long() * block_size
    behind = (last + keys - queries + 1)[:, None] - start
    before = (first + keys - queries)[:, None] - start
    seen = _sum_to(behind, block_size) - _sum_to(before, block_size)
    return int(seen.masked_fill(lists < 0, 0).sum())


def _sum_to(n: torch.Tensor, block_size: int) -> torch.Tensor:
    """The sum of min(i, block_size) for i from 1 to n."""
    n = n.clamp(min=0)
    inside = n.clamp(max=block_size)
    return inside * (inside + 1) // 2 + (n - inside) * block_size


_active: Collector | None = None


def active() -> Collector | None:
    return _active


@contextmanager
def collect(record: bool | Iterable[int] = False) -> Iterator[Stats]:
    """Sums up the calls inside the `with` block, of all threads; blocks do not nest.

    Args:
        record: keep the chosen lists: True for all layers, or the indices of layers.

    Yields:
        Stats, which grows with each call.
    """
    global _active
    if _active is not None:
        raise RuntimeError("collect: already collecting")
    _active = Collector(record)
    try:
        yield _active.stats
    finally:
        _active = None
