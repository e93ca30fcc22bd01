"""How well the model read: its losses, token by token, and what they amount to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tessera.demo.text import Passage, Reading

if TYPE_CHECKING:
    import torch

_CHUNK = 512  # tokens whose logits exist at a time: 100 MB of f32 for a vocabulary of 49,152
_BUCKETS = 8


@dataclass(frozen=True)
class Quality:
    """Natural-log losses as perplexities, over the text alone; and the mean losses of the passages."""

    ppl: float
    ppl_late: float  # of the second half
    buckets: list[dict[str, float]]  # from, to (positions), ppl
    first: dict[str, float]  # passage -> loss when it is read for the first time
    repeat: dict[str, float]  # passage -> loss when it is read again
    mean_loss: float  # over all tokens


def token_losses(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """f32 [tokens - 1]: entry i is the loss of token i + 1. hidden [1, tokens, width] is the decoder's output."""
    import torch

    head = model.get_output_embeddings()
    parts = []
    for start in range(0, ids.shape[1] - 1, _CHUNK):
        end = min(start + _CHUNK, ids.shape[1] - 1)
        logits = head(hidden[0, start:end]).float()
        parts.append(torch.nn.functional.cross_entropy(logits, ids[0, start + 1 : end + 1], reduction="none"))
    return torch.cat(parts)


def quality(losses: torch.Tensor, reading: Reading) -> Quality:
    def mean(first: int, last: int) -> float:
        """Of the tokens at positions [first, last). Nothing predicts token 0."""
        return losses[max(first, 1) - 1 : last - 1].double().mean().item()

    end = reading.text_tokens
    edges = [end * i // _BUCKETS for i in range(_BUCKETS + 1)]
    counted = [(p, p.first, p.again) for p in reading.passages]
    return Quality(
        ppl=math.exp(mean(0, end)),
        ppl_late=math.exp(mean(end // 2, end)),
        buckets=[{"from": a, "to": b, "ppl": math.exp(mean(a, b))} for a, b in pairwise(edges)],
        first={p.name: mean(*_counted(p, first)) for p, first, _ in counted},
        repeat={p.name: mean(*_counted(p, again)) for p, _, again in counted},
        mean_loss=mean(0, reading.tokens),
    )


def _counted(passage: Passage, start: int) -> tuple[int, int]:
    return start + passage.skip, start + passage.length
