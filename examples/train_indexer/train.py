"""Trains an index branch for each layer of a small dense model, which stays as it is.

    python examples/train_indexer/train.py --out models/smollm2-135m-indexer       # goes on where it was stopped

A window of text goes through the model. In each layer a branch gets what attention gets, and learns to rank the blocks of
keys as the attention of that layer distributes its probability: cross entropy against the mass of the blocks, of queries
drawn at random. Two branches are trained side by side: in MSA form, a list of blocks of 64 per KV head, and in QSA form, one
list of blocks of 4 for all heads. README.md has the recipe and what came of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tessera.integrations.transformers as hf
import torch
from mass import block_mass, coarser
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tessera.demo.model import NAME, load
from tessera.integrations.transformers._indexer import IndexBranch, Indexer, Rotary, Shape
from text import PACKAGES, Windows, versions
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

MSA_BLOCK, QSA_BLOCK = 64, 4
_STAGES = ((2048, 60), (4096, 70), (8192, 40))  # tokens of a window, windows
_QUERIES = 512  # of a window, in each layer
_RATE = 6e-3  # learning rate at its highest
_WARM_UP = 8  # windows
_LOWEST = 0.02  # of the highest rate, at the end
_SHARPNESS = 0.5  # the target is the mass to this power: ranking the middle of the list matters, not its head
_SAVE_EVERY = 10  # windows
_NOWHERE = -1e30


def shapes(config: Any) -> tuple[Shape, Shape]:
    common = {
        "model_type": config.model_type,
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "dim": 32,
        "rope_theta": config.rope_parameters["rope_theta"],
    }
    return (
        Shape(form="msa", heads=config.num_key_value_heads, block_size=MSA_BLOCK, **common),
        Shape(form="qsa", heads=4, block_size=QSA_BLOCK, **common),
    )


# ---- Losses ------------------------------------------------------------------------------------------------------------


def cross_entropy(scores: torch.Tensor, mass: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Of scores [..., R, N] against the mass of the counted blocks, bool [R, N]. Rows without any count nothing."""
    target = mass.masked_fill(~counted, 0) ** _SHARPNESS
    target = target / target.sum(-1, keepdim=True).clamp(min=1e-6)
    chosen = scores.masked_fill(~counted, _NOWHERE).log_softmax(-1)
    return -(target * chosen.clamp(min=-1e3)).sum(-1).mean()


def msa_scores(branch: IndexBranch, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[Hi, R, N]: the best key of each block. hidden [S, hidden]."""
    positions = torch.arange(len(hidden))
    k = branch.keys(hidden, Rotary(positions, branch.shape, hidden.dtype))
    q = branch.queries(hidden[rows], Rotary(rows, branch.shape, hidden.dtype))
    scores = (q.transpose(0, 1) @ k.T) * branch.shape.dim**-0.5
    return scores.masked_fill(positions > rows[:, None], _NOWHERE).unflatten(-1, (-1, MSA_BLOCK)).amax(-1)


def msa_loss(branch: IndexBranch, hidden: torch.Tensor, rows: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """mass [Hkv, R, N]. The first block and a query's own are always selected, so they are not ranked."""
    block = torch.arange(mass.shape[-1])
    return cross_entropy(msa_scores(branch, hidden, rows), mass, (block > 0) & (block < (rows // MSA_BLOCK)[:, None]))


def qsa_scores(branch: IndexBranch, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[R, N]: ReLU of the heads, summed, against the mean key of each block. hidden [S, hidden]."""
    k = branch.keys(hidden, None).unflatten(0, (-1, QSA_BLOCK)).mean(1)
    k = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + branch.shape.eps) * (1 + branch.k_norm.weight)
    k = Rotary(torch.arange(0, len(hidden), QSA_BLOCK), branch.shape, hidden.dtype).turn(k)
    q = branch.queries(hidden[rows], Rotary(rows, branch.shape, hidden.dtype))
    return (q.transpose(0, 1) @ k.T).relu().sum(0) * branch.shape.dim**-0.5


def qsa_loss(branch: IndexBranch, hidden: torch.Tensor, rows: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """mass [R, N], of all heads. The tokens of an incomplete block are always selected, so complete ones are ranked."""
    block = torch.arange(mass.shape[-1])
    return cross_entropy(qsa_scores(branch, hidden, rows), mass, block < ((rows + 1) // QSA_BLOCK)[:, None])


# ---- The model ---------------------------------------------------------------------------------------------------------


def rotated(
    attention: torch.nn.Module, hidden: torch.Tensor, embeddings: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer's own queries [Hq, S, D] and keys [Hkv, S, D]. hidden [S, hidden]."""
    projections = (attention.q_proj, attention.k_proj)
    q, k = (of(hidden).unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)[None] for of in projections)
    q, k = apply_rotary_pos_emb(q, k, *embeddings)
    return q[0], k[0]


def layer_mass(
    attention: torch.nn.Module, hidden: torch.Tensor, embeddings: tuple[torch.Tensor, torch.Tensor], rows: torch.Tensor
) -> torch.Tensor:
    """f32 [Hkv, R, S / QSA_BLOCK]: where the queries `rows` of a dense layer look. hidden [S, hidden]."""
    q, k = rotated(attention, hidden, embeddings)
    return block_mass(q[:, rows], k, rows, QSA_BLOCK, attention.scaling)


@contextmanager
def watching(model: Any, visit: Callable[..., None]) -> Iterator[None]:
    """Inside, `visit(layer, attention, hidden [S, hidden], embeddings)` sees what each attention layer of a window gets."""

    def hook(attention: torch.nn.Module, _: Any, given: dict[str, Any]) -> None:
        visit(attention.layer_idx, attention, given["hidden_states"][0], given["position_embeddings"])

    layers = model.get_decoder().layers
    handles = [layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Training:
    """All that goes on from one window to the next."""

    def __init__(self, model: Any, seed: int):
        torch.manual_seed(seed)
        self.seed = seed
        self.model = model
        self.indexers = {shape.form: Indexer(shape) for shape in shapes(model.config)}
        parameters = [p for indexer in self.indexers.values() for p in indexer.branches.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=_RATE, betas=(0.9, 0.95))
        self.done = 0
        self.log: list[dict[str, float]] = []

    def step(self, ids: torch.Tensor, rate: float) -> dict[str, float]:
        """One window, ids [1, S]; returns the mean loss of each form."""
        dice = torch.Generator().manual_seed(self.seed * 1_000_003 + self.done)
        sums = dict.fromkeys(self.indexers, 0.0)

        def visit(layer: int, attention: torch.nn.Module, hidden: torch.Tensor, embeddings: Any) -> None:
            rows = torch.randperm(len(hidden), generator=dice)[:_QUERIES].sort().values
            mass = layer_mass(attention, hidden, embeddings, rows)
            msa, qsa = (indexer.branches[layer] for indexer in self.indexers.values())
            with torch.enable_grad():
                losses = (
                    msa_loss(msa, hidden, rows, coarser(mass, MSA_BLOCK // QSA_BLOCK)),
                    qsa_loss(qsa, hidden, rows, mass.mean(0)),
                )
                for form, branch, loss in zip(sums, (msa, qsa), losses, strict=True):
                    loss.backward()
                    # Each branch for itself: no layer waits for another.
                    torch.nn.utils.clip_grad_norm_(branch.parameters(), 1.0)
                    sums[form] += loss.item() / len(self.indexers[form].branches)

        self.optimizer.zero_grad()
        with torch.no_grad(), watching(self.model, visit):
            self.model.get_decoder()(input_ids=ids, use_cache=False)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.done += 1
        return sums

    def save(self, path: Path) -> None:
        state = {
            "branches": {form: indexer.branches.state_dict() for form, indexer in self.indexers.items()},
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
            "log": self.log,
        }
        torch.save(state, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)

    def load(self, path: Path) -> None:
        state = torch.load(path)
        for form, indexer in self.indexers.items():
            indexer.branches.load_state_dict(state["branches"][form])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.log = state["done"], state["log"]


def rate_at(window: int, windows: int) -> float:
    """Rises over the first windows, then falls along half a cosine."""
    fall = 0.5 * (1 + math.cos(math.pi * window / windows))
    return _RATE * min((window + 1) / _WARM_UP, 1) * (_LOWEST + (1 - _LOWEST) * fall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the trained files")
    parser.add_argument("--state", type=Path, default=Path("build/train_indexer.pt"), help="what a stopped run left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--windows", type=int, nargs=len(_STAGES), default=[count for _, count in _STAGES],
                        help=f"how many windows of {', '.join(str(tokens) for tokens, _ in _STAGES)} tokens")  # fmt: skip
    given = parser.parse_args()
    lengths = [tokens for (tokens, _), count in zip(_STAGES, given.windows, strict=True) for _ in range(count)]

    loaded = load(None, torch.float32)
    hf.enable(selector="dense")
    loaded.model.set_attn_implementation("tessera")
    loaded.model.requires_grad_(False)
    training = Training(loaded.model, given.seed)
    given.state.parent.mkdir(parents=True, exist_ok=True)
    if given.state.exists():
        training.load(given.state)
    windows = Windows(loaded.tokenizer, given.seed)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns) as progress:
        bar = progress.add_task("training", total=len(lengths))
        for place, tokens in enumerate(lengths):
            ids = windows.next(tokens)
            if place >= training.done:  # else it has been learnt from before the run was stopped
                began = time.perf_counter()
                losses = training.step(ids, rate_at(place, len(lengths)))
                training.log.append({"tokens": tokens, "seconds": round(time.perf_counter() - began, 2), **losses})
                if training.done % _SAVE_EVERY == 0:
                    training.save(given.state)
            text = ", ".join(f"{form} {training.log[place][form]:.3f}" for form in training.indexers)
            progress.update(bar, completed=place + 1, description=f"loss {text}")

    given.out.mkdir(parents=True, exist_ok=True)
    about = {"base_model": NAME, "seed": str(given.seed), "text": windows.digest}
    for form, indexer in training.indexers.items():
        indexer.save(given.out / f"{form}.safetensors", about)
    facts = {
        "packages": {name: versions()[name] for name in PACKAGES},
        "text_sha256": windows.digest,
        "log": training.log,
    }
    (given.out / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
    given.state.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
