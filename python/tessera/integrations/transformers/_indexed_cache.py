"""What a cache keeps for layers with an indexer: keys, values and index keys that grow in place, and compressed keys.

A step compresses the blocks that its tokens complete, no other. Raw index keys are all kept, as the framework keeps them, a
small part of the keys and values beside them: so any number of tokens may be taken back, and a model's own code can go on
with the same cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicIndexedLayer, DynamicLayer, StaticIndexedLayer, StaticLayer

from tessera.integrations.transformers._cache import Growing, GrowingLayer, take_over
from tessera.integrations.transformers._mask import Span


class CompressedKeys:
    """Compressed keys of the complete blocks of each request, which are counted from its first real token.

    A block that tokens taken back had completed is written again when it completes again. Requests of a batch may have
    different numbers of blocks; what lies behind a request's last complete block has no meaning.
    """

    def __init__(self) -> None:
        self._keys: torch.Tensor | None = None  # [B, capacity, D]
        self._starts: list[int] = []  # slot of each request's first token
        self._blocks: list[int] = []  # complete blocks of each request
        self._block_size = 1

    @property
    def requests(self) -> int:
        return len(self._starts)

    def update(
        self, raw: torch.Tensor, spans: tuple[Span, ...], block_size: int, compress: Callable[..., None]
    ) -> torch.Tensor:
        """Adds the blocks that have completed among raw index keys [B, S, D]; returns the keys of all, [B, N, D].

        `compress(raw, span, first, out)` writes the keys of a span's blocks from block `first` on: `raw` of their tokens.
        """
        if len(self._starts) != raw.shape[0]:
            self._keys = None
            self._starts, self._blocks = [0] * raw.shape[0], [0] * raw.shape[0]
        self._block_size = block_size
        most = max((span.stop - span.start) // block_size for span in spans)
        self._reserve(raw, most)
        for span in spans:
            requests = slice(span.first, span.last)
            known = min(
                blocks if start == span.start else 0
                for start, blocks in zip(self._starts[requests], self._blocks[requests], strict=True)
            )
            blocks = (span.stop - span.start) // block_size
            if known < blocks:
                slots = slice(span.start + known * block_size, span.start + blocks * block_size)
                compress(raw[requests, slots], span, known, self._keys[requests, known:blocks])
            self._starts[requests] = [span.start] * (span.last - span.first)
            self._blocks[requests] = [blocks] * (span.last - span.first)
        return self._keys[:, :most]

    def _reserve(self, raw: torch.Tensor, blocks: int) -> None:
        before = self._keys
        if before is not None and before.shape[1] >= blocks:
            return
        # Twice what is needed: n tokens copy O(n) keys in all.
        self._keys = raw.new_empty((raw.shape[0], 2 * blocks, raw.shape[2]))
        if before is not None:
            self._keys[:, : before.shape[1]] = before

    def crop(self, length: int) -> None:
        """The cache now ends at slot `length`."""
        self._blocks = [
            min(blocks, max(length - start, 0) // self._block_size)
            for start, blocks in zip(self._starts, self._blocks, strict=True)
        ]

    def take(self, requests: list[int]) -> None:
        """The requests are now what those at these places were, in this order."""
        if self._keys is not None:
            self._keys = self._keys[requests]
            self._starts, self._blocks = ([of[i] for i in requests] for of in (self._starts, self._blocks))


class _Compressed:
    """Compressed keys beside the framework's indexed layer, through all that is done to a layer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.compressed = CompressedKeys()

    def reset(self) -> None:
        super().reset()
        self.compressed = CompressedKeys()

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        self.compressed.crop(int(self.get_seq_length()))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        self.compressed.take(beam_idx.tolist())


class GrowingIndexedLayer(_Compressed, GrowingLayer, DynamicIndexedLayer):
    """The framework's dynamic indexed layer, with all that it holds growing in place."""

    indexer_keys = Growing()

    @property
    def indexed(self) -> int:
        """Tokens whose index keys are held."""
        return 0 if self.indexer_keys is None else self.indexer_keys.shape[1]

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        self.is_indexer_initialized = True
        return self.held("indexer_keys").append(indexer_key_states)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.compressed.take([i for i in range(self.compressed.requests) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self.compressed.take(torch.arange(self.compressed.requests)[indices].tolist())


class FixedIndexedLayer(_Compressed, StaticIndexedLayer):
    """The framework's static indexed layer."""

    @property
    def indexed(self) -> int:
        return int(self.indexer_cumulative_length) if self.is_indexer_initialized else 0

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        # The framework's own leaves the positions of the tokens that it removes.
        if self.indexer_position_ids is not None:
            self.indexer_position_ids = self.indexer_position_ids[..., : int(self.get_seq_length())]


_ADOPTED: dict[type, type[_Compressed]] = {
    DynamicIndexedLayer: GrowingIndexedLayer,
    StaticIndexedLayer: FixedIndexedLayer,
    # of models that have no indexer of their own
    DynamicLayer: GrowingIndexedLayer,
    StaticLayer: FixedIndexedLayer,
}


def layer_of(cache: Cache, index: int) -> GrowingIndexedLayer | FixedIndexedLayer | None:
    """The layer of a cache as one of ours, which takes the place of the framework's; None if it is of another kind.

    Layers are taken over where they are first used by an indexer of ours, not when they are made: caches of other models and
    of other attention implementations stay as they are.
    """
    while len(cache.layers) <= index and cache.layer_class_to_replicate is DynamicLayer:  # as the framework adds them
        cache.layers.append(DynamicLayer())
    layer = cache.layers[index]
    ours = _ADOPTED.get(type(layer))
    if ours is not None:
        empty = ours(max_cache_len=layer.max_cache_len) if ours is FixedIndexedLayer else ours()
        layer = take_over(cache, index, empty)
    return layer if isinstance(layer, _Compressed) else None
