"""What a model's own indexer hands to the attention function in place of the ids that the model code makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from tessera.integrations.transformers._mask import Span
from tessera.integrations.transformers._options import NAME


class Selection(ABC):
    """Blocks of keys of all requests of a call, not chosen yet: only the attention function knows the padding."""

    block_size: int

    @abstractmethod
    def of(self, span: Span) -> Selection:
        """The part of a span, without its padding."""

    @abstractmethod
    def lists(self, kv_heads: int) -> torch.Tensor:
        """Chooses: int32 [B, Hkv, Sq, W], ids from the first key, -1 where unused."""

    @abstractmethod
    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """q [B, Sq, Hq, D], k [B, Sk, Hkv, D] and v [B, Sk, Hkv, Dv], the last query meeting the last key, to
        [B, Sq, Hq, Dv]."""


def _is_enabled(module: torch.nn.Module, *args: Any, **kwargs: Any) -> bool:
    return module.config._attn_implementation == NAME


def replace_forward(
    owner: type[torch.nn.Module], forward: Callable, is_ours: Callable[..., bool] = _is_enabled
) -> Callable[[], None]:
    """Gives a class of a model another forward where its implementation is "tessera"; returns what undoes it.

    `is_ours` tells by the arguments of a call, for modules that do not know their model's configuration.
    """
    original = owner.forward

    def choose(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (forward if is_ours(self, *args, **kwargs) else original)(self, *args, **kwargs)

    def undo() -> None:
        owner.forward = original

    owner.forward = choose
    return undo
