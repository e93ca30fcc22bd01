"""MiniMax-M3: its trained indexer through `msa_select`, its attention over lists of blocks per token and KV head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as m3

from tessera.integrations.transformers._cache import Growing, GrowingLayer, grow
from tessera.integrations.transformers._selection import BlockSelection, replace_forward

_LAYER_TYPE = m3.MiniMaxM3VLSparseCacheLayer._layer_type
_undo: list[Callable[[], None]] = []


class SparseCacheLayer(GrowingLayer, m3.MiniMaxM3VLSparseCacheLayer):
    """The model's dynamic cache layer with keys, values and index keys that grow in place.

    The model's static layer writes in place already.
    """

    idx_keys = Growing()

    def update_index(self, idx_k: torch.Tensor) -> torch.Tensor:
        return self.held("idx_keys").append(idx_k)


def _index(
    indexer: m3.MiniMaxM3VLIndexer,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    cache: Any,
    position_ids: torch.Tensor,
) -> BlockSelection:
    """The first half of the model's `MiniMaxM3VLIndexer.forward`: up to the scores, which are never stored here."""
    batch, q_len, _ = hidden_states.shape
    q = indexer.q_norm(indexer.q_proj(hidden_states).view(batch, q_len, -1, indexer.head_dim)).transpose(1, 2)
    k = indexer.k_norm(indexer.k_proj(hidden_states).view(batch, q_len, 1, indexer.head_dim)).transpose(1, 2)
    cos, sin = (angle[..., : indexer.head_dim] for angle in position_embeddings)
    q, k = m3.apply_rotary_pos_emb(q, k, cos, sin)
    if cache is not None:
        layer = cache.layers[indexer.layer_idx]
        if isinstance(layer, SparseCacheLayer) and layer.idx_keys is None:
            grow(cache)  # those of the layers without an indexer, too
        k = layer.update_index(k)
    return BlockSelection(q, k, indexer.topk_blocks, indexer.local_blocks, indexer.block_size)


def patch() -> None:
    _undo.append(replace_forward(m3.MiniMaxM3VLIndexer, _index))
    DYNAMIC_LAYER_TYPE_MAPPING[_LAYER_TYPE] = SparseCacheLayer


def restore() -> None:
    _undo.pop()()
    DYNAMIC_LAYER_TYPE_MAPPING[_LAYER_TYPE] = m3.MiniMaxM3VLSparseCacheLayer
