"""Cache layers that grow in place: a token is written behind those before it, where the framework copies them all anew."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

_ALIGNMENT = 128  # tokens; a buffer holds whole blocks of the usual size


class GrowingTensor:
    """A tensor [..., n, D] at the start of a buffer [..., capacity, D], dense in its last two axes.

    A buffer that is too small is left for one of twice the tokens, so that n appends copy O(n) tokens in all. The room costs
    address space, but no memory where the system commits pages on their first use.
    """

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self._length = 0
        self._room = 0  # tokens that fit in the buffer; 0 if somebody else made it, who may still look at it

    def get(self) -> torch.Tensor | None:
        """All tokens, a view of the buffer: none is copied. Valid until the tensor is cropped and appended to again."""
        return None if self._buffer is None else self._buffer[..., : self._length, :]

    def set(self, states: torch.Tensor | None) -> None:
        """Replaces the tokens. The first tokens of what `get` returned stay in their buffer: so is a cache cropped."""
        if states is not None and self._is_prefix(states):
            self._length = states.shape[-2]
            return
        self._buffer = states
        self._length = 0 if states is None else states.shape[-2]
        self._room = 0

    def append(self, states: torch.Tensor) -> torch.Tensor:
        """Writes states [..., m, D] behind the tokens and returns all of them, as `get` does."""
        if torch.is_grad_enabled() and states.requires_grad:
            # Backward needs what was there before, so nothing is written over.
            before = self.get()
            self.set(states if before is None else torch.cat([before, states], dim=-2))
        else:
            length = self._length + states.shape[-2]
            if length > self._room:
                self._grow(states, length)
            self._buffer[..., self._length : length, :] = states
            self._length = length
        return self.get()

    def _grow(self, like: torch.Tensor, length: int) -> None:
        room = -(-2 * length // _ALIGNMENT) * _ALIGNMENT
        buffer = like.new_empty((*like.shape[:-2], room, like.shape[-1]))
        if self._length:
            buffer[..., : self._length, :] = self.get()
        self._buffer = buffer
        self._room = room

    def _is_prefix(self, states: torch.Tensor) -> bool:
        held = self.get()
        return (
            held is not None
            and states.data_ptr() == held.data_ptr()
            and states.stride() == held.stride()
            and states.dtype == held.dtype
            and states.shape[:-2] == held.shape[:-2]
            and states.shape[-1] == held.shape[-1]
            and states.shape[-2] <= held.shape[-2]
        )


class Growing:
    """An attribute of a cache layer that is read and assigned like a tensor or None, and held by a GrowingTensor.

    So the framework's own code for reset, crop, reorder and batch operations, which reads and assigns attributes, holds for
    layers that grow in place, and such layers keep only `append` to themselves: `GrowingLayer.held(self, "keys")`.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, layer: GrowingLayer | None, owner: type | None = None) -> Any:
        return self if layer is None else layer.held(self._name).get()

    def __set__(self, layer: GrowingLayer, states: torch.Tensor | None) -> None:
        layer.held(self._name).set(states)


class GrowingLayer(DynamicLayer):
    """The framework's dynamic layer with keys and values that grow in place.

    A subclass that caches more adds attributes `name = Growing()` and appends with `self.held("name").append(states)`.
    """

    keys = Growing()
    values = Growing()

    def held(self, name: str) -> GrowingTensor:
        return self.__dict__.setdefault("_held", {}).setdefault(name, GrowingTensor())

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.device = key_states.device
        self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B, H, m, D] of new tokens in; those of all tokens [B, H, n, D] out, views of their buffers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self.held("keys").append(key_states), self.held("values").append(value_states)


def take_over(cache: Cache, index: int, ours: CacheLayerMixin) -> CacheLayerMixin:
    """Puts a layer of ours in the place of a cache's layer, with all that it holds."""
    for name, value in vars(cache.layers[index]).items():
        setattr(ours, name, value)
    cache.layers[index] = ours
    return ours


def grow(cache: Cache) -> None:
    """The framework's plain dynamic layers of a cache grow in place from now on."""
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            take_over(cache, index, GrowingLayer())
