"""The mask function: padding and positions of a forward pass, as numbers instead of a matrix.

The framework calls it once per forward pass, and passes what it returns to the attention function of every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask


class Span(NamedTuple):
    """Consecutive requests of a batch with the same padding, and where their real tokens lie.

    Keys are at cache slots [start, stop) and the queries of this call at the last `rows` of these slots, which are rows
    [row, row + rows) of the call: the last query meets the last key.
    """

    first: int  # requests [first, last)
    last: int
    start: int
    stop: int
    row: int
    rows: int


class RefusedMask:
    """A mask that cannot be honoured. It is refused where attention meets it: some models make masks that no layer uses."""

    ndim = 4

    def __init__(self, reason: str):
        self.reason = reason


class CausalMask:
    """Causal attention over a batch with padding on the left, the right or both sides of each request."""

    # `generate` makes the masks for a static cache ahead of the model, which then asks `attention_mask.ndim == 2`.
    ndim = 4
    # A model with an indexer combines a bool mask with its selection: `mask & selection`.
    dtype = torch.bool

    def __and__(self, selection: Any) -> Any:
        """The selection: what it leaves is causal and no padding, for it has been made with this mask."""
        return selection if getattr(selection, "mask", None) is self else NotImplemented

    def __init__(
        self, requests: int, q_length: int, kv_length: int, q_offset: int, attention_mask: torch.Tensor | None
    ):
        self.requests = requests
        self.q_length = q_length
        self.kv_length = kv_length
        self.spans = tuple(_spans(requests, q_length, q_offset, attention_mask))
        # No row of the call is padding, and all requests have the same keys.
        self.is_whole = len(self.spans) == 1 and self.spans[0].rows == q_length


def _spans(requests: int, q_length: int, q_offset: int, attention_mask: torch.Tensor | None) -> list[Span]:
    total = q_offset + q_length
    if attention_mask is None:
        return [Span(0, requests, 0, total, 0, q_length)]
    if attention_mask.shape[0] != requests or attention_mask.shape[1] < total:
        raise ValueError(
            f"tessera mask: attention_mask has shape {tuple(attention_mask.shape)}; expected {requests} requests and at "
            f"least {total} tokens, the cached ones included"
        )
    real = attention_mask[:, :total].numpy()
    starts = real.argmax(axis=1)
    stops = starts + real.sum(axis=1)
    if not np.array_equal(real, (np.arange(total) >= starts[:, None]) & (np.arange(total) < stops[:, None])):
        raise NotImplementedError(
            "tessera mask: attention_mask has holes; expected padding before and behind the tokens of a request"
        )
    spans = []
    for request in range(requests):
        start, stop = int(starts[request]), int(stops[request])
        if spans and (spans[-1].start, spans[-1].stop) == (start, stop):
            spans[-1] = spans[-1]._replace(last=request + 1)
            continue
        row = max(start - q_offset, 0)
        spans.append(Span(request, request + 1, start, stop, row, max(stop - q_offset - row, 0)))
    return spans


def causal_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | CausalMask | RefusedMask | None = None,
    local_size: int | None = None,
    **kwargs: Any,
) -> CausalMask | RefusedMask | torch.Tensor:
    """What the framework's mask interface calls.

    Args:
        q_offset: slot of the first query. With a static cache it is the live counter that the first layer advances in
            place, so its value is taken here.
        attention_mask: bool [B, at least q_offset + q_length], True for real tokens; or a mask made ahead by `generate`.
        mask_function: causal; bidirectional ones get the framework's own mask, and no skipping of it, since an absent
            mask could be taken for a causal one.
        local_size: the size of a sliding window or chunk.
    """
    if mask_function is bidirectional_mask_function:
        kwargs["allow_is_causal_skip"] = kwargs["allow_is_bidirectional_skip"] = False
        return sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **kwargs)
    if isinstance(attention_mask, RefusedMask):
        return attention_mask
    if local_size is not None or kv_offset != 0:
        return RefusedMask(
            f"sliding windows and attention chunks are not supported (size {local_size}, first key at {kv_offset})"
        )
    if mask_function is not causal_mask_function:
        return RefusedMask(
            "only causal masks are supported; this one is combined with another pattern (packed sequences, bidirectional "
            "tokens or a mask function of the model)"
        )
    if isinstance(attention_mask, CausalMask):
        return attention_mask
    return CausalMask(batch_size, q_length, kv_length, int(q_offset), attention_mask)
