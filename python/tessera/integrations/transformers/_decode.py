"""Lists that sparse decode keeps between selections.

An attention function learns nothing about the sequence it serves: no cache object, no request id. What it can see is the
keys, so a kept list carries a witness: a sample of the keys it was chosen from, of all tokens up to the query that chose.
A list is used only where the witness is found again bit for bit, at the same positions, within `refresh` tokens. Keys behind
the first layer depend on every token before them; in the first layer, on the tokens sampled. So another sequence, another
beam, a cropped or reset cache do not find their witness and choose anew. Choosing anew is always right, only slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from tessera.integrations.transformers._options import Options

_RECENT = 16  # tokens before the query that are sampled one by one
_SPREAD = 16  # tokens sampled evenly over the whole sequence, about


@dataclass
class _Kept:
    position: int  # of the query that chose, from the first key
    witness: tuple[torch.Tensor, torch.Tensor]
    lists: torch.Tensor  # int32 [B, Hkv, 1, W], with the blocks that have begun since
    end: int  # blocks from this one on have not been added yet


# Attention module -> kept lists by the index of the span. Never more entries than the largest batch has had spans.
_kept: WeakKeyDictionary[torch.nn.Module, dict[int, _Kept]] = WeakKeyDictionary()


def forget() -> None:
    _kept.clear()


def lists_for(
    module: torch.nn.Module, span: int, options: Options, k: torch.Tensor, choose: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Lists of a single query at the last position of k [B, Sk, Hkv, D]: kept ones, or those that `choose` gives now."""
    position = k.shape[1] - 1
    of_module = _kept.setdefault(module, {})
    kept = of_module.get(span)
    if (
        kept is None
        or not kept.position <= position < kept.position + options.refresh
        or not all(map(torch.equal, kept.witness, _sample(k, kept.position)))
    ):
        witness = tuple(sample.clone() for sample in _sample(k, position))
        of_module[span] = kept = _Kept(position, witness, choose(), position // options.block_size + 1)
    begun = position // options.block_size + 1
    if kept.end < begun:
        new = torch.arange(kept.end, begun, dtype=torch.int32)
        kept.lists = torch.cat([kept.lists, new.expand(*kept.lists.shape[:-1], -1)], dim=-1)
        kept.end = begun
    return kept.lists


def _sample(k: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
    step = position // _SPREAD + 1
    return k[:, max(position + 1 - _RECENT, 0) : position + 1], k[:, position % step : position + 1 : step]
