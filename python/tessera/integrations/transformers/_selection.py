"""What an indexer hands to the attention function: a model's own in place of the ids that the model makes, or that of a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

import tessera
from tessera.integrations.transformers._mask import CausalMask, Span
from tessera.integrations.transformers._options import NAME

_ROWS = 4096  # rows whose token lists exist at once: 32 MiB at 2,051 tokens a row


class Selection(ABC):
    """Blocks of keys of all requests of a call, not chosen yet: only the attention function knows the padding."""

    block_size: int
    is_optional: bool = (
        False  # whether calls that the options call dense are dense: the model was trained with dense attention
    )

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


@dataclass(frozen=True)
class BlockSelection(Selection):
    """Index queries and all index keys, rotated."""

    q: torch.Tensor  # [B, Hi, Sq, Di]
    k: torch.Tensor  # [B, 1, Sk, Di], what lies behind the tokens of a static cache included
    topk: int
    local_blocks: int
    block_size: int
    init_blocks: int = 0
    is_optional: bool = False

    def of(self, span: Span) -> BlockSelection:
        rows = slice(span.row, span.row + span.rows)
        q = self.q[span.first : span.last, :, rows]
        k = self.k[span.first : span.last, :, span.start : span.stop]
        return replace(self, q=q, k=k)

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
            init_blocks=self.init_blocks,
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


@dataclass(frozen=True)
class TokenSelection(Selection):
    """Index queries and compressed keys, of all requests of a call or of a span.

    Blocks are counted from a request's first real token. Lists have complete blocks; the tokens of the incomplete last
    one are always attended to.
    """

    mask: CausalMask
    q: torch.Tensor  # [B, Sq, Hi, Di], normalised and rotated
    k: torch.Tensor  # [B, N, Di]
    block_size: int
    topk: int
    positions: torch.Tensor | None = None  # of a span: int32 [B, Sq], from the first real token
    is_optional: bool = False

    def of(self, span: Span) -> TokenSelection:
        requests = slice(span.first, span.last)
        length = span.stop - span.start
        positions = torch.arange(length - span.rows, length, dtype=torch.int32).expand(span.last - span.first, -1)
        q = self.q[requests, span.row : span.row + span.rows]
        return replace(self, q=q, k=self.k[requests], positions=positions)

    def lists(self, kv_heads: int) -> torch.Tensor:
        """One list for all heads: [B, 1, Sq, at most topk]."""
        width = min(self.topk, max(self.k.shape[1], 1))
        ids = tessera.qsa_select(
            self.q, self.k, budget=width * self.block_size, block_size=self.block_size, query_positions=self.positions
        )
        return ids[:, None]

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        step = max(_ROWS // len(q), 1)
        for first in range(0, q.shape[1], step):
            rows = slice(first, first + step)
            positions = self.positions[:, rows]
            tokens = tessera.qsa_expand_blocks(lists[:, 0, rows], positions, block_size=self.block_size)
            tessera.qsa_sparse_attention(
                q[:, rows], k, v, tokens, query_positions=positions, scale=scaling, out=out[:, rows]
            )
        return out


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
