"""MiniMax-M3: its trained indexer through `msa_select`, its attention over lists of blocks per token and KV head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as m3

import tessera
from tessera.integrations.transformers._cache import Growing, GrowingLayer
from tessera.integrations.transformers._mask import Span
from tessera.integrations.transformers._selection import Selection, replace_forward

_LAYER_TYPE = m3.MiniMaxM3VLSparseCacheLayer._layer_type
_undo: list[Callable[[], None]] = []


class SparseCacheLayer(GrowingLayer, m3.MiniMaxM3VLSparseCacheLayer):
    """The model's dynamic cache layer with keys, values and index keys that grow in place.

    The model's static layer writes in place already.
    """

    idx_keys = Growing()

    def update_index(self, idx_k: torch.Tensor) -> torch.Tensor:
        return self.held("idx_keys").append(idx_k)


@dataclass(frozen=True)
class BlockSelection(Selection):
    """Index queries and all index keys, rotated."""

    q: torch.Tensor  # [B, Hi, Sq, Di]
    k: torch.Tensor  # [B, 1, Sk, Di], what lies behind the tokens of a static cache included
    topk: int
    local_blocks: int
    block_size: int

    def of(self, span: Span) -> BlockSelection:
        rows = slice(span.row, span.row + span.rows)
        q = self.q[span.first : span.last, :, rows]
        k = self.k[span.first : span.last, :, span.start : span.stop]
        return BlockSelection(q, k, self.topk, self.local_blocks, self.block_size)

    def lists(self, kv_heads: int) -> torch.Tensor:
        index_heads = self.q.shape[1]
        if kv_heads % index_heads != 0:
            raise NotImplementedError(
                f"tessera attention: the indexer has {index_heads} heads and the keys {kv_heads}; expected as many, or a "
                "number that divides it"
            )
        lists = tessera.msa_select(
            self.q.transpose(1, 2),
            self.k.transpose(1, 2),
            topk=self.topk,
            local_blocks=self.local_blocks,
            block_size=self.block_size,
        )
        return lists if index_heads == kv_heads else lists.repeat_interleave(kv_heads // index_heads, dim=1)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        requests, queries, heads, dim = q.shape
        page_table, seqused_k = _one_page_each(requests, k.shape[1])
        out = tessera.msa_sparse_decode_attention(
            q.reshape(requests * queries, heads, dim),
            k.transpose(1, 2),
            v.transpose(1, 2),
            lists.transpose(0, 1).flatten(1, 2),
            page_table=page_table,
            seqused_k=seqused_k,
            seqlen_q=queries,
            block_size=self.block_size,
            softmax_scale=scaling,
        )
        return out.view(requests, queries, heads, v.shape[3])


@lru_cache(maxsize=4)
def _one_page_each(requests: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A page table and lengths: the keys of a request are one page, wherever they begin and end. Layers share them."""
    return torch.arange(requests, dtype=torch.int32)[:, None], torch.full((requests,), keys, dtype=torch.int32)


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
        k = cache.layers[indexer.layer_idx].update_index(k)
    return BlockSelection(q, k, indexer.topk_blocks, indexer.local_blocks, indexer.block_size)


def patch() -> None:
    _undo.append(replace_forward(m3.MiniMaxM3VLIndexer, _index))
    DYNAMIC_LAYER_TYPE_MAPPING[_LAYER_TYPE] = SparseCacheLayer


def restore() -> None:
    _undo.pop()()
    DYNAMIC_LAYER_TYPE_MAPPING[_LAYER_TYPE] = m3.MiniMaxM3VLSparseCacheLayer
