"""The kinds of attention that read the text, and what one reading takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import tessera.integrations.transformers as hf
from tessera.demo import BLOCK
from tessera.demo.memory import Peak
from tessera.integrations.transformers._indexer import Indexer

UNTRAINED = ("mass", "moba", "window", "random")

_NAMES = {
    "framework": "dense, framework",
    "dense": "dense, tessera",
    "mass": "sampled mass",
    "msa-indexer": "msa indexer",
    "qsa-indexer": "qsa indexer",
    "moba": "mean keys (MoBA)",
    "window": "sliding window",
    "random": "random blocks",
}


@dataclass(frozen=True)
class Reader:
    selector: str  # "framework", a selector of the integration, or the form of an indexer
    budget: int | None = None  # tokens; None: dense
    indexer: Indexer | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return _NAMES[self.selector]

    @property
    def block_size(self) -> int:
        return BLOCK if self.indexer is None else self.indexer.shape.block_size

    @property
    def block_q(self) -> int:
        """Queries that share a list."""
        return BLOCK if self.indexer is None else 1

    def __str__(self) -> str:
        return self.name if self.budget is None else f"{self.name}, {self.budget:,}"


FRAMEWORK, DENSE = Reader("framework"), Reader("dense")


@dataclass
class Timing:
    """One prefill."""

    prefill_s: float
    attention_s: float | None  # None: not taken apart
    select_s: float
    keys_share: float
    peak_mib: float


@dataclass
class Outcome:
    timing: Timing
    hidden: torch.Tensor  # [1, tokens, width], the decoder's output
    cache: DynamicCache
    lists: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> int32 [Hkv, nQ, K], of the recorded ones


class _FrameworkClock:
    """The framework's own attention with a clock around it."""

    name = "sdpa_with_clock"

    def __init__(self) -> None:
        self.seconds = 0.0
        AttentionInterface.register(self.name, self)
        AttentionMaskInterface.register(self.name, sdpa_mask)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        out = sdpa_attention_forward(*args, **kwargs)
        self.seconds += time.perf_counter() - began
        return out


@contextmanager
def attending(model: Any, reader: Reader, **options: Any) -> Iterator[None]:
    """Inside, the model reads as `reader` does."""
    if reader.selector == "framework":
        model.set_attn_implementation("sdpa")
        yield
        return
    if reader.budget is not None:
        options["budget"] = reader.budget
    if reader.indexer is not None:
        options["indexer"] = reader.indexer
    else:
        options |= {"selector": reader.selector, "block_size": BLOCK, "block_q": BLOCK}
    with hf.options(**options):
        model.set_attn_implementation("tessera")
        yield


def prefill(
    model: Any, ids: torch.Tensor, reader: Reader, *, with_clock: bool = True, record: bool | Iterable[int] = False
) -> Outcome:
    """The whole of ids [1, tokens] in one pass, with a cache, as an engine does it. Call it under inference_mode.

    Args:
        with_clock: False: the framework runs exactly as it comes, and its attention is not timed.
        record: whether to keep the lists that were chosen: those of all layers, or of some.
    """
    cache = DynamicCache(config=model.config)

    def read() -> tuple[torch.Tensor, float]:
        began = time.perf_counter()
        hidden = model.get_decoder()(input_ids=ids, cache=cache, use_cache=True).last_hidden_state
        return hidden, time.perf_counter() - began

    with attending(model, reader):
        if reader.selector == "framework":
            clock = _FrameworkClock()
            if with_clock:
                model.set_attn_implementation(clock.name)
            with Peak() as peak:
                hidden, seconds = read()
            timing = Timing(seconds, clock.seconds if with_clock else None, 0.0, 1.0, peak.mib)
            return Outcome(timing, hidden, cache)
        with hf.collect(record=record) as stats, Peak() as peak:
            hidden, seconds = read()
        sums = stats.prefill
        timing = Timing(seconds, sums.attention_s, sums.select_s, sums.keys_read / sums.keys_dense, peak.mib)
        lists = {layer: of_layer[0][0] for layer, of_layer in stats.selections.items()}
        return Outcome(timing, hidden, cache, lists)


def continuation(
    model: Any, reader: Reader, cache: DynamicCache, ids: torch.Tensor, start: int, count: int
) -> list[int]:
    """The `count` likeliest tokens from position `start` on, one after the other. Shortens the cache to that position.

    Block-sparse readers decode block-sparse too.
    """
    options = {"decode": "sparse"} if reader.budget is not None else {}
    cache.crop(start - 1 - cache.get_seq_length())
    token, chosen = ids[:, start - 1 : start], []
    with attending(model, reader, **options):
        for _ in range(count):
            token = model(input_ids=token, cache=cache, use_cache=True).logits[:, -1:].argmax(-1)
            chosen.append(token.item())
    return chosen
