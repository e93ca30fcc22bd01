"""Qwen4-Exp: its own indexer on compressed keys that are kept, and attention over the tokens of the blocks it selects.

The model's code selects inside `indexer.forward`, into a bool matrix that `attention.forward` combines with the mask and passes
on. Here the mask is a `CausalMask`, the indexer returns a selection, the untouched `attention.forward` forms `mask & selection`,
and so the selection reaches our attention function.

The output gate stays the model's, in torch: it rounds the sigmoid to the dtype before it multiplies, which no fused gate does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.models.qwen4_exp import modeling_qwen4_exp as qwen4

import tessera
from tessera.integrations.transformers._attention import refuse_gradients, refuse_mask
from tessera.integrations.transformers._indexed_cache import CompressedKeys, layer_of
from tessera.integrations.transformers._mask import CausalMask, RefusedMask, Span
from tessera.integrations.transformers._selection import TokenSelection, replace_forward

_undo: list[Callable[[], None]] = []


class _Tail:
    """cos and sin of positions [3, B, S], computed from the earliest slot on that somebody asks for.

    The model's code computes them for all cached tokens in every step.
    """

    def __init__(self, compute: Callable, positions: torch.Tensor, first: int):
        self._compute = compute
        self._positions = positions
        self._first = first
        self._tables = compute(positions[:, :, first:])

    @property
    def slots(self) -> int:
        return self._positions.shape[2]

    def at(self, start: int, stop: int, step: int) -> tuple[torch.Tensor, ...]:
        if start < self._first:
            self._first = start
            self._tables = self._compute(self._positions[:, :, start:])
        return tuple(table[:, start - self._first : stop - self._first : step] for table in self._tables)


class _Table:
    """cos or sin of a `_Tail`, as far as the model's code looks into them: `table[:, slots, :]`."""

    def __init__(self, tail: _Tail, which: int):
        self._tail = tail
        self._which = which

    def __getitem__(self, index: tuple[slice, slice, slice]) -> torch.Tensor:
        requests, slots, features = index
        return self._tail.at(*slots.indices(self._tail.slots))[self._which][requests, :, features]


def _rotate(original: Callable) -> Callable:
    def forward(rotary: torch.nn.Module, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[Any, Any]:
        """x [B, Sq, ...] of the new tokens, position_ids [3, B, S] of all."""
        if rotary.rope_type in ("dynamic", "longrope"):  # frequencies depend on the largest position
            return original(rotary, x, position_ids)
        # A block that a new token completes may have begun in an earlier call.
        first = max(position_ids.shape[-1] - x.shape[1] - rotary.config.indexer_compress_ratio + 1, 0)
        tail = _Tail(lambda positions: original(rotary, x, positions), position_ids, first)
        return _Table(tail, 0), _Table(tail, 1)

    return forward


def _is_ours(
    indexer: torch.nn.Module,
    hidden_states: Any,
    position_embeddings: Any,
    attention_mask: Any,
    *args: Any,
    **kwargs: Any,
) -> bool:
    return isinstance(attention_mask, CausalMask | RefusedMask) or isinstance(position_embeddings[0], _Table)


def _index(
    indexer: torch.nn.Module,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[Any, Any],
    attention_mask: CausalMask | RefusedMask | torch.Tensor,
    cache: Cache | None = None,
) -> TokenSelection:
    """The first part of the model's forward, up to the raw keys; then the keys of the blocks that have been completed."""
    if not isinstance(attention_mask, CausalMask):
        refuse_mask(attention_mask)
    refuse_gradients(hidden_states)
    queries = hidden_states.shape[1]
    projected = indexer.index_qk_proj(hidden_states).unflatten(-1, (-1, indexer.index_head_dim))
    q, raw = projected[:, :, :-1], projected[:, :, -1]
    cos, sin = (table[:, -queries:, :] for table in position_embeddings)
    q = qwen4.apply_rotary_pos_emb(indexer.q_layernorm(q), cos=cos, sin=sin, unsqueeze_dim=2)

    layer = None if cache is None else layer_of(cache, indexer.layer_idx)
    if cache is not None:
        raw = cache.update_indexer(raw, indexer.layer_idx)

    def compress(raw: torch.Tensor, span: Span, first: int, out: torch.Tensor) -> None:
        half = cos.shape[-1] // 2
        start, stop = (span.start + block * indexer.compress_ratio for block in (first, first + out.shape[1]))
        requests, slots = slice(span.first, span.last), slice(start, stop, indexer.compress_ratio)
        # There is one row of positions where all requests stand at the same.
        of_blocks = (table[:, slots, :][..., :half].float() for table in position_embeddings)
        cos_blocks, sin_blocks = (t.expand(len(raw), -1, -1) if len(t) == 1 else t[requests] for t in of_blocks)
        tessera.qsa_compress_keys(
            raw,
            indexer.k_layernorm.weight.detach(),
            cos=cos_blocks,
            sin=sin_blocks,
            block_size=indexer.compress_ratio,
            eps=indexer.k_layernorm.eps,
            rotary_dim=2 * half,
            round_intermediates=True,
            out=out,
        )

    compressed = CompressedKeys() if layer is None else layer.compressed
    keys = compressed.update(raw, attention_mask.spans, indexer.compress_ratio, compress)
    return TokenSelection(attention_mask, q, keys, indexer.compress_ratio, indexer.block_topk)


def patch() -> None:
    rotary = qwen4.Qwen4ExpTextRotaryEmbedding
    _undo.append(replace_forward(rotary, _rotate(rotary.forward)))
    _undo.append(replace_forward(qwen4.Qwen4ExpTextQSAIndexer, _index, _is_ours))


def restore() -> None:
    while _undo:
        _undo.pop()()
