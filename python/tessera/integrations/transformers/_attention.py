"""The attention function: checks what the framework asks for, cuts the padding, chooses blocks, attends."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NoReturn

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import tessera
from tessera.integrations.transformers import _decode, _select, _stats
from tessera.integrations.transformers._mask import CausalMask, RefusedMask, Span
from tessera.integrations.transformers._options import Options, current
from tessera.integrations.transformers._selection import Selection

_DENSE_BLOCK = 128  # tokens; a block as long as the kernel's key tile

# Arguments that do not change what attention computes. All others are refused unless absent, known or not.
_HARMLESS = frozenset(
    {
        "cache",
        "cache_position",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "past_key_value",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
_WHY = {
    "output_attentions": "the probabilities are never stored",
    "softcap": "scores are not soft-capped",
    "s_aux": "attention sinks are not supported",
    "sinks": "attention sinks are not supported",
    "sliding_window": "sliding windows are not supported",
    "position_bias": "scores take no bias",
    "cu_seq_lens_q": "packed sequences are not supported",
    "seq_idx": "packed sequences are not supported",
    "block_indices": "the model's own selection is not supported",
    "indices": "the model's own selection is not supported",
}


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: CausalMask | RefusedMask | Selection | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What the framework's attention interface calls.

    Args:
        query: [B, Hq, Sq, D]; key: [B, Hkv, Skv, D]; value: [B, Hkv, Skv, Dv], with all cached tokens. A static cache
            hands over its full length.
        attention_mask: what `causal_mask` returned, or a selection made with it; None from a model that makes no mask.

    Returns:
        ([B, Sq, Hq, Dv], None).
    """
    began = perf_counter()
    selection = kwargs.get("block_indices")
    if isinstance(selection, Selection):
        del kwargs["block_indices"]
    elif isinstance(attention_mask, Selection):
        selection, attention_mask = attention_mask, attention_mask.mask
    else:
        selection = None
    for name, given in kwargs.items():
        if name not in _HARMLESS and given is not None and given is not False:
            why = _WHY.get(name, "this argument is not known")
            raise NotImplementedError(f"tessera attention: {name} cannot be honoured: {why}")
    if not isinstance(attention_mask, CausalMask):
        if isinstance(attention_mask, RefusedMask):
            refuse_mask(attention_mask)
        if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=False
            )
        attention_mask = _mask_of_none(query, key, attention_mask)
    _check(query, key, value, attention_mask, dropout)

    options = current()
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if attention_mask.is_whole:
        span = attention_mask.spans[0]
        if span.stop - span.start != key.shape[2]:
            k, v = k[:, span.start : span.stop], v[:, span.start : span.stop]
        if selection is not None:
            return _attend_selected(module, options, selection.of(span), scaling, q, k, v, began), None
        return _attend(module, options, scaling, 0, q, k, v, None, began), None
    out = q.new_zeros((*q.shape[:3], v.shape[3]))
    for index, span in enumerate(attention_mask.spans):
        if span.rows:
            q_span, out_span = _rows(q, span), _rows(out, span)
            k_span, v_span = (t[span.first : span.last, span.start : span.stop] for t in (k, v))
            if selection is not None:
                chosen = selection.of(span)
                out_span[:] = _attend_selected(module, options, chosen, scaling, q_span, k_span, v_span, began)
            else:
                _attend(module, options, scaling, index, q_span, k_span, v_span, out_span, began)
            began = perf_counter()
    return out, None


def _rows(t: torch.Tensor, span: Span) -> torch.Tensor:
    return t[span.first : span.last, span.row : span.row + span.rows]


def _mask_of_none(query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None) -> CausalMask:
    """A causal call without our mask: the model made none, as `sdpa` understands it, or it made its own."""
    requests, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    if attention_mask is not None:
        refuse_mask(attention_mask)
    if queries not in (1, keys):
        raise NotImplementedError(
            f"tessera attention: attention_mask is absent with {queries} queries and {keys} keys: where the queries stand "
            "is unknown"
        )
    return CausalMask(requests, queries, keys, keys - queries, None)


def refuse_mask(mask: Any) -> NoReturn:
    """A mask that is not a `CausalMask`."""
    if isinstance(mask, RefusedMask):
        raise NotImplementedError(f"tessera attention: attention_mask cannot be honoured: {mask.reason}")
    raise NotImplementedError(
        f"tessera attention: attention_mask is a {type(mask).__name__} made outside the mask function of tessera; expected "
        "None or bool [B, tokens], given to the model"
    )


def refuse_gradients(*tensors: torch.Tensor) -> None:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise NotImplementedError(
            "tessera attention: gradients are not supported; call the model under torch.no_grad()"
        )


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: CausalMask, dropout: float) -> None:
    if dropout != 0:
        raise NotImplementedError(f"tessera attention: dropout is {dropout}; expected 0, as after model.eval()")
    refuse_gradients(query, key, value)
    if (query.shape[0], query.shape[2], key.shape[2]) != (mask.requests, mask.q_length, mask.kv_length):
        raise ValueError(
            f"tessera attention: query has shape {tuple(query.shape)} and key {tuple(key.shape)}, the mask was made for "
            f"{mask.requests} requests, {mask.q_length} queries and {mask.kv_length} keys"
        )


def _is_decode(options: Options, queries: int, keys: int) -> bool:
    return queries < keys and (queries == 1 or queries < options.block_q)


def _is_dense(options: Options, layer: int, queries: int, keys: int) -> bool:
    """Whether the options call for dense attention."""
    return (
        keys <= options.dense_threshold
        or options.selector == "dense"
        or layer in options.dense_layers
        or (options.decode == "dense" and _is_decode(options, queries, keys))
    )


def _attend(
    module: torch.nn.Module,
    options: Options,
    scaling: float | None,
    index: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor | None,
    began: float,
) -> torch.Tensor:
    """Attention of one span: q [B, Sq, Hq, D], k [B, Sk, Hkv, D], v [B, Sk, Hkv, Dv] without padding."""
    requests, queries = q.shape[:2]
    keys, kv_heads = k.shape[1:3]
    layer = getattr(module, "layer_idx", -1)
    is_decode = _is_decode(options, queries, keys)
    # A model with an indexer was trained to be dense where it has none.
    is_dense = _is_dense(options, layer, queries, keys) or getattr(module, "indexer", module) is None
    if not is_dense and options.selector == "indexer":
        raise NotImplementedError(
            f"tessera attention: {type(module).__name__} selects by no indexer; expected the attention that the indexer of "
            "`enable` was trained for"
        )
    collector = _stats.active()
    select_s = 0.0
    if is_dense:
        block_size, block_q = _DENSE_BLOCK, queries
        lists = _select.every_block(requests, -(-keys // block_size))
    else:
        block_size, block_q = options.block_size, options.block_q
        select_began = perf_counter()
        if is_decode and queries == 1:
            choose = lambda: _select.select(options, q, k, scaling, layer)  # noqa: E731
            lists = _decode.lists_for(module, index, options, k, choose)
        else:
            lists = _select.select(options, q, k, scaling, layer)
        select_s = perf_counter() - select_began
    out = tessera.block_sparse_gqa_prefill(
        q, k, v, lists, block_size=block_size, block_q=block_q, softmax_scale=scaling, out=out
    )
    if collector is not None:
        seconds = (perf_counter() - began - select_s, select_s)
        shape = (requests, kv_heads, queries, keys)
        collector.add(is_decode, layer, seconds, shape, None if is_dense else lists, (block_size, block_q))
    return out


def _attend_selected(
    module: torch.nn.Module,
    options: Options,
    selection: Selection,
    scaling: float | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    began: float,
) -> torch.Tensor:
    """`_attend` with an indexer's selection. The options have no say in that of a model's own."""
    requests, queries = q.shape[:2]
    keys, kv_heads = k.shape[1:3]
    layer = getattr(module, "layer_idx", -1)
    if selection.is_optional and _is_dense(options, layer, queries, keys):
        return _attend(module, options, scaling, 0, q, k, v, None, began)
    select_began = perf_counter()
    lists = selection.lists(kv_heads)
    select_s = perf_counter() - select_began
    out = selection.attend(q, k, v, lists, scaling)
    collector = _stats.active()
    if collector is not None:
        seconds = (perf_counter() - began - select_s, select_s)
        shape = (requests, kv_heads, queries, keys)
        collector.add(queries < keys, layer, seconds, shape, lists, (selection.block_size, 1))
    return out
