"""Selection by an indexer from a file: beside each attention layer of a model that has no indexer of its own.

The layers' forwards are replaced: first the index queries and keys are made from what the layer gets, then the layer's own
forward runs, and passes the selection on to our attention function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from time import perf_counter
from typing import Any

import torch

import tessera
from tessera.integrations.transformers import _stats
from tessera.integrations.transformers._attention import refuse_gradients
from tessera.integrations.transformers._indexed_cache import CompressedKeys, layer_of
from tessera.integrations.transformers._indexer import IndexBranch, Indexer, Rotary, Shape
from tessera.integrations.transformers._mask import CausalMask, Span
from tessera.integrations.transformers._options import Options, current
from tessera.integrations.transformers._selection import BlockSelection, Selection, TokenSelection, replace_forward

# The attention layers of model types, all of which pass on arguments that they do not know.
_ATTENTION = {
    "llama": "LlamaAttention",
    "mistral": "MistralAttention",
    "qwen2": "Qwen2Attention",
    "qwen3": "Qwen3Attention",
}
_undo: list[Callable[[], None]] = []


def use(indexer: Indexer | None) -> None:
    """Replaces the forwards of the model that an indexer is for; None: of none."""
    model = None if indexer is None else indexer.shape.model_type
    if model is not None and model not in _ATTENTION:
        raise NotImplementedError(
            f"enable: the indexer is for models of type {model!r}; expected one of {', '.join(_ATTENTION)}"
        )
    while _undo:
        _undo.pop()()
    if model is None:
        return
    owner = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), _ATTENTION[model])
    _undo.append(replace_forward(owner, _select_before(owner.forward)))


def _select_before(original: Callable) -> Callable:
    def forward(
        attention: torch.nn.Module,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        options = current()
        selects = options.selector == "indexer" and attention.layer_idx not in options.dense_layers
        if selects and isinstance(attention_mask, CausalMask):
            began = perf_counter()
            kwargs["block_indices"] = _select(options, attention, hidden_states, attention_mask, cache)
            if (collector := _stats.active()) is not None:
                is_decode = any(span.rows < span.stop - span.start for span in attention_mask.spans)
                collector.add_index(is_decode, perf_counter() - began)
        return original(attention, hidden_states, position_embeddings, attention_mask, cache, **kwargs)

    return forward


def _select(
    options: Options, attention: torch.nn.Module, hidden: torch.Tensor, mask: CausalMask, cache: Any
) -> Selection:
    """hidden [B, Sq, hidden] of the new tokens."""
    refuse_gradients(hidden)
    shape = options.indexer.shape
    check_fits(shape, attention.config)
    branch = options.indexer.branch(attention.layer_idx, hidden.dtype)
    rotary = _rotary(mask, shape, hidden.dtype)
    q, keys = branch.queries(hidden, rotary), branch.keys(hidden, rotary)
    layer = None if cache is None else layer_of(cache, attention.layer_idx)
    if layer is not None:
        if layer.is_initialized and int(layer.get_seq_length()) != layer.indexed:
            raise ValueError(
                f"tessera attention: the cache holds {int(layer.get_seq_length())} tokens, {layer.indexed} of which the "
                "indexer has seen; expected a cache that was filled with this indexer"
            )
        keys = layer.update_indexer(keys)
    elif cache is not None:
        raise NotImplementedError(
            f"tessera attention: cache layers of type {type(cache.layers[attention.layer_idx]).__name__} hold no index keys; "
            "expected those of a DynamicCache or a StaticCache"
        )
    if shape.form == "msa":
        return BlockSelection(
            q.transpose(1, 2),
            keys[:, None],
            options.blocks,
            options.local_blocks,
            shape.block_size,
            init_blocks=options.init_blocks,
            is_optional=True,
        )
    compressed = CompressedKeys() if layer is None else layer.compressed
    blocks = compressed.update(keys, mask.spans, shape.block_size, _compress(branch))
    return TokenSelection(mask, q, blocks, shape.block_size, options.blocks, is_optional=True)


def _compress(branch: IndexBranch) -> Callable[..., None]:
    shape = branch.shape

    def compress(raw: torch.Tensor, span: Span, first: int, out: torch.Tensor) -> None:
        start, count = first * shape.block_size, raw.shape[1]
        tessera.qsa_compress_keys(
            raw,
            branch.k_norm.weight,
            positions=torch.arange(start, start + count, dtype=torch.int32).expand(len(raw), -1),
            block_size=shape.block_size,
            eps=shape.eps,
            rotary_dim=shape.dim,
            rope_theta=shape.rope_theta,
            out=out,
        )

    return compress


def check_fits(shape: Shape, config: Any) -> None:
    """ValueError: a model of other sizes than the one that the indexer was trained for."""
    expected = {"hidden_size": shape.hidden_size, "num_hidden_layers": shape.layers}
    if shape.form == "msa":
        expected["num_key_value_heads"] = shape.heads
    for name, value in expected.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"tessera attention: {name} of the model is {getattr(config, name)}; expected {value}, as in the model that "
                "the indexer was trained for"
            )


@lru_cache(maxsize=2)
def _rotary(mask: CausalMask, shape: Shape, dtype: torch.dtype) -> Rotary:
    """At the positions of a call's tokens, counted from each request's first real one. Layers share it."""
    positions = torch.zeros(mask.requests, mask.q_length, dtype=torch.int64)
    for span in mask.spans:
        length = span.stop - span.start
        positions[span.first : span.last, span.row : span.row + span.rows] = torch.arange(length - span.rows, length)
    return Rotary(positions, shape, dtype)
