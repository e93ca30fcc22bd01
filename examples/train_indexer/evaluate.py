"""What the trained indexers are worth, on text that they have not seen.

    python examples/train_indexer/evaluate.py models/smollm2-135m-indexer                   # prints a line of JSON per result
    python examples/train_indexer/evaluate.py models/smollm2-135m-indexer --only mass

Three parts. mass: how much of the dense attention's probability the chosen blocks hold, layer by layer. loss: how well the model
reads with them, plain text and passages that it has read before. time: its attention, prefill and decode, in turns with the
framework's.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import mean, median
from typing import Any

import tessera
import tessera.integrations.transformers as hf
import torch
from mass import coarser
from tessera.demo.model import load
from tessera.demo.quality import token_losses
from tessera.demo.text import Passage, library_reference
from tessera.integrations.transformers._indexer import Indexer, Rotary
from train import MSA_BLOCK, QSA_BLOCK, layer_mass, rotated, watching
from transformers import DynamicCache

TOKENS = 8192
BUDGETS = (512, 1024, 2048)
_FEATURED = 1024
_WINDOWS = 3  # of each text
_PASSAGES = 7  # of a window, read for the second time at its end
_PASSAGE, _SKIP = 256, 16  # tokens of a passage, and those at the start of its second reading that are not counted
_NEAREST, _APART = 1500, 300  # tokens: passage i begins 1,500 + 556 i tokens back, and none overlaps another
_LATE = 4096  # tokens at the end of a plain window whose perplexity is taken
_ROWS = 256  # queries of a window whose mass is looked at
_STEPS = 24  # of decode, timed
_SOURCES = ("argparse", "ast", "inspect", "pathlib", "tarfile", "turtle", "typing")  # modules of Python's own library


def source_code() -> str:
    return "\n\n".join(inspect.getsource(import_module(name)) for name in _SOURCES)


# None of it was trained on: both are Python's own.
TEXTS = {"documentation": library_reference, "source code": source_code}


def plain_windows(tokens: torch.Tensor) -> Iterator[torch.Tensor]:
    """Windows [1, TOKENS] from places of a text that are far apart."""
    for place in range(_WINDOWS):
        start = place * ((len(tokens) - TOKENS) // _WINDOWS)
        yield tokens[None, start : start + TOKENS]


def with_passages(window: torch.Tensor) -> tuple[torch.Tensor, list[Passage]]:
    """The window with its end replaced: passages of it are read again."""
    text = TOKENS - _PASSAGES * _PASSAGE
    ids, passages = window.clone(), []
    for i in range(_PASSAGES):
        first, again = text - _NEAREST - i * _APART, text + i * _PASSAGE
        passages.append(Passage(str(again - first), first, again, _PASSAGE, _SKIP))
        ids[:, again : again + _PASSAGE] = window[:, first : first + _PASSAGE]
    return ids, passages


def readers(indexers: dict[str, Indexer], budgets: tuple[int, ...]) -> dict[tuple[str, int | None], dict[str, Any]]:
    """(name, budget) -> the options that read so."""
    found: dict[tuple[str, int | None], dict[str, Any]] = {("dense", None): {"selector": "dense"}}
    for budget in budgets:
        for form, indexer in indexers.items():
            found[f"{form} indexer", budget] = {"indexer": indexer, "budget": budget}
        for selector in ("mass", "moba", "window"):
            found[selector, budget] = {"selector": selector, "budget": budget}
    return found


def show(part: str, **facts: Any) -> None:
    print(json.dumps({"part": part, **facts}), flush=True)


# ---- Mass --------------------------------------------------------------------------------------------------------------


def kept_mass(indexers, layer, attention, hidden, embeddings, rows) -> Iterator[tuple[str, torch.Tensor]]:
    """(who chooses, mass of what he chooses [heads, R]) for the queries `rows` of one layer. hidden [S, hidden]."""
    fine = layer_mass(attention, hidden, embeddings, rows)
    blocks, tokens = coarser(fine, MSA_BLOCK // QSA_BLOCK), fine.mean(0)
    topk = _FEATURED // MSA_BLOCK
    own, block = rows // MSA_BLOCK, torch.arange(blocks.shape[-1])

    def best(scores: torch.Tensor) -> torch.Tensor:
        scores = scores.masked_fill((block == 0) | (block == own[:, None]), torch.inf)
        return scores.masked_fill(block > own[:, None], -torch.inf).topk(topk, dim=-1).indices

    def kept(ids: torch.Tensor) -> torch.Tensor:
        return blocks.gather(-1, ids.expand(len(blocks), -1, -1)).sum(-1)

    yield "dense mass", kept(best(blocks))
    yield (
        "window",
        kept(torch.cat([torch.zeros_like(own)[:, None], own[:, None] - torch.arange(topk - 1)], dim=1)[None]),
    )
    q, k = rotated(attention, hidden, embeddings)
    of_groups = q[:, rows].unflatten(0, (len(k), -1)).mean(1)
    yield "moba", kept(best(of_groups @ k.unflatten(1, (-1, MSA_BLOCK)).mean(2).transpose(1, 2)))

    def index(form: str) -> tuple[Any, torch.Tensor, torch.Tensor]:
        branch, shape = indexers[form].branches[layer], indexers[form].shape
        rotary = Rotary(torch.arange(len(hidden)), shape, hidden.dtype)
        return branch, branch.queries(hidden[None], rotary), branch.keys(hidden[None], rotary)

    if "msa" in indexers:
        _, q, k = index("msa")
        lists = tessera.msa_select(q, k[:, :, None], topk=topk, init_blocks=1, block_size=MSA_BLOCK)
        yield "msa indexer", kept(lists[0][:, rows].long())
    if "qsa" in indexers:
        branch, q, raw = index("qsa")
        shape = branch.shape
        keys = tessera.qsa_compress_keys(
            raw,
            branch.k_norm.weight,
            block_size=QSA_BLOCK,
            eps=shape.eps,
            rotary_dim=shape.dim,
            rope_theta=shape.rope_theta,
        )
        ids = tessera.qsa_select(q, keys, budget=_FEATURED, block_size=QSA_BLOCK)[0, rows].long()
        # The tokens of a block that is not complete are always attended to.
        always = tokens.masked_fill(torch.arange(tokens.shape[-1]) < ((rows + 1) // QSA_BLOCK)[:, None], 0).sum(-1)
        yield "qsa indexer", tokens.gather(-1, ids).sum(-1) + always


def measure_mass(model: Any, indexers: dict[str, Indexer], name: str, tokens: torch.Tensor) -> None:
    """Queries behind the first _FEATURED tokens, up to which a list holds everything."""
    dice = torch.Generator().manual_seed(0)
    rows = (_FEATURED + torch.randperm(TOKENS - _FEATURED, generator=dice)[:_ROWS]).sort().values
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def visit(layer: int, attention: torch.nn.Module, hidden: torch.Tensor, embeddings: Any) -> None:
        for who, kept in kept_mass(indexers, layer, attention, hidden, embeddings, rows):
            found[who][layer].append(kept.mean().item())

    with hf.options(selector="dense"), watching(model, visit):
        for window in plain_windows(tokens):
            model.get_decoder()(input_ids=window, use_cache=False)
    for who, layers in found.items():
        shares = [mean(layers[layer]) for layer in sorted(layers)]
        show(
            "mass",
            text=name,
            who=who,
            budget=_FEATURED,
            mean=round(mean(shares), 4),
            layers=[round(s, 3) for s in shares],
        )


# ---- Loss --------------------------------------------------------------------------------------------------------------


def measure_loss(
    model: Any, options: dict[tuple[str, int | None], dict[str, Any]], name: str, tokens: torch.Tensor
) -> None:
    for (who, budget), of_reader in options.items():
        late, again, first = [], defaultdict(list), []
        with hf.options(**of_reader), hf.collect() as stats:
            for window in plain_windows(tokens):
                late.append(_losses(model, window)[-_LATE:].mean().item())
                ids, passages = with_passages(window)
                losses = _losses(model, ids)
                for p in passages:
                    again[p.back].append(losses[p.again + p.skip - 1 : p.again + p.length - 1].mean().item())
                    first.append(losses[p.first + p.skip - 1 : p.first + p.length - 1].mean().item())
        everywhere = [loss for of_distance in again.values() for loss in of_distance]
        show(
            "loss", text=name, who=who, budget=budget, keys_share=round(stats.keys_read / stats.keys_dense, 4),
            ppl_late=round(math.exp(mean(late)), 4), passages=len(everywhere), again=round(mean(everywhere), 4),
            first=round(mean(first), 4), by_distance={back: round(mean(losses), 3) for back, losses in sorted(again.items())},
        )  # fmt: skip


def _losses(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return token_losses(model, model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state, ids)


# ---- Time --------------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds in the attention layers of a model, all but their projections: index branch, selection, cache, attention."""

    def __init__(self, model: Any):
        self.seconds = 0.0
        self._began: list[float] = []
        for layer in model.get_decoder().layers:
            attention = layer.self_attn
            self._count(attention, 1)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
                self._count(projection, -1)

    def _count(self, module: torch.nn.Module, sign: int) -> None:
        def end(*_: Any) -> None:
            self.seconds += sign * (time.perf_counter() - self._began.pop())

        module.register_forward_pre_hook(lambda *_: self._began.append(time.perf_counter()))
        module.register_forward_hook(end)


def measure_time(model: Any, indexers: dict[str, Indexer], tokens: torch.Tensor, rounds: int) -> None:
    """In turns: each reads the same window and takes a few steps behind it."""
    clock, window, step = Clock(model), next(iter(plain_windows(tokens))), tokens[None, -1:]
    turns = {"framework": None, "dense": {"selector": "dense"}}
    turns |= {
        f"{form} indexer": {"indexer": i, "budget": _FEATURED, "decode": "sparse"} for form, i in indexers.items()
    }
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(rounds):
        for who, options in turns.items():
            model.set_attn_implementation("sdpa" if options is None else "tessera")
            with hf.options(**(options or {})), hf.collect() as stats:
                cache = DynamicCache(config=model.config)
                clock.seconds, began = 0.0, time.perf_counter()
                model.get_decoder()(input_ids=window, cache=cache, use_cache=True)
                found[who]["prefill_s"].append(time.perf_counter() - began)
                found[who]["prefill_attention_s"].append(clock.seconds)
                found[who]["prefill_select_s"].append(stats.prefill.select_s)
                steps = []
                for _ in range(_STEPS):
                    clock.seconds = 0.0
                    model.get_decoder()(input_ids=step, cache=cache, use_cache=True)
                    steps.append(clock.seconds)
                found[who]["decode_attention_ms"].append(1000 * median(steps))
                found[who]["decode_select_ms"].append(1000 * stats.decode.select_s / _STEPS)
    for who, figures in found.items():
        show("time", who=who, tokens=TOKENS, budget=_FEATURED, threads=torch.get_num_threads(), runs=rounds,
             **{name: round(median(values), 4) for name, values in figures.items()},
             faster={name: round(median(found["framework"][name]) / median(figures[name]), 2)
                     for name in ("prefill_s", "prefill_attention_s", "decode_attention_ms")})  # fmt: skip


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="with msa.safetensors and qsa.safetensors")
    parser.add_argument("--only", choices=["mass", "loss", "time"], nargs="+", default=["mass", "loss", "time"])
    parser.add_argument("--texts", choices=list(TEXTS), nargs="+", default=list(TEXTS))
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--rounds", type=int, default=3, help="of timing")
    given = parser.parse_args()
    indexers = {path.stem: Indexer.load(path) for path in sorted(given.directory.glob("*.safetensors"))}
    if not indexers:
        parser.error(f"{given.directory} holds no .safetensors file")

    loaded = load(None, torch.float32)
    hf.enable()
    loaded.model.set_attn_implementation("tessera")
    texts = {name: loaded.tokenizer(TEXTS[name](), return_tensors="pt").input_ids[0] for name in given.texts}
    for name, tokens in texts.items():
        if "mass" in given.only:
            measure_mass(loaded.model, indexers, name, tokens)
        if "loss" in given.only:
            measure_loss(loaded.model, readers(indexers, given.budgets), name, tokens)
    if "time" in given.only:
        measure_time(loaded.model, indexers, next(iter(texts.values())), given.rounds)


if __name__ == "__main__":
    main()
