"""Worst difference of logits between tessera and a model's own eager attention, tiny random weights.

    python examples/transformers/parity.py --model m3

Beside it the difference between the model's own eager and sdpa attention in the same dtype: what rounding alone does. In bf16
it makes selections flip, which changes whole rows, so the mean difference stands behind the worst. Every case runs the same
tokens through all three. Padded requests are compared with the same request alone in eager attention, for that is what
tessera gives; the last column says how far the model's own eager attention is from it.

Exits with status 1 if f32 differs by more than 1e-4 of the largest logit, or bf16 on average by more than 1.5 times what sdpa
does.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import tessera.integrations.transformers as hf
import torch
import transformers
from sparse_models import MODELS, VOCABULARY
from transformers import PreTrainedModel

LENGTH = 200  # tokens; no multiple of a block
LENGTHS = [LENGTH, 131, 50]  # of padded requests
DTYPES = (torch.float32, torch.bfloat16)


def tokens(length: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def run(model: PreTrainedModel, name: str, *args, **kwargs) -> torch.Tensor:
    model.set_attn_implementation(name)
    return model(*args, **kwargs).logits


def in_steps(model: PreTrainedModel, name: str, steps: list[int], kind: str = "dynamic") -> torch.Tensor:
    """Logits of a text that is read in steps of so many tokens."""
    if kind == "dynamic":
        cache = transformers.DynamicCache(config=model.config)
    else:
        cache = transformers.StaticCache(config=model.config, max_cache_len=LENGTH + 40)
    parts = tokens(LENGTH, batch=2).split(steps, dim=1)
    return torch.cat([run(model, name, part, cache=cache, use_cache=True) for part in parts], dim=1)


def prefill(model: PreTrainedModel, name: str) -> torch.Tensor:
    return run(model, name, tokens(LENGTH, batch=2))


def generation(model: PreTrainedModel, name: str) -> torch.Tensor:
    return in_steps(model, name, [LENGTH - 40] + [1] * 40)


def chunked(model: PreTrainedModel, name: str) -> torch.Tensor:
    return in_steps(model, name, [70, 70, LENGTH - 140])


def static(model: PreTrainedModel, name: str) -> torch.Tensor:
    return in_steps(model, name, [70, LENGTH - 110] + [1] * 40, "static")


def alone(model: PreTrainedModel, name: str) -> torch.Tensor:
    return torch.cat([run(model, name, tokens(length, seed=i))[0] for i, length in enumerate(LENGTHS)])


def padded(model: PreTrainedModel, name: str) -> torch.Tensor:
    """Rows of the requests of a batch with padding on the left, one request after the other."""
    ids = torch.zeros(len(LENGTHS), LENGTH, dtype=torch.long)
    for i, length in enumerate(LENGTHS):
        ids[i, LENGTH - length :] = tokens(length, seed=i)[0]
    mask = ids != 0
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    return run(model, name, ids, attention_mask=mask.long(), position_ids=positions)[mask]


CASES = {  # name -> what tessera runs, what eager and sdpa run
    "prefill": (prefill, prefill),
    "padded batch": (padded, alone),
    "generation": (generation, generation),
    "chunked prefill": (chunked, chunked),
    "static cache": (static, static),
}


@dataclass(frozen=True)
class Difference:
    worst: float
    mean: float

    @staticmethod
    def of(got: torch.Tensor, expected: torch.Tensor) -> Difference:
        difference = (got.float() - expected.float()).abs()
        return Difference(difference.max().item(), difference.mean().item())

    def __str__(self) -> str:
        return f"{self.worst:.2g}, {self.mean:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="m3")
    name = parser.parse_args().model
    hf.enable()
    good = True
    print("| dtype | case | largest logit | tessera - eager: worst, mean | sdpa - eager | eager: padded - alone |")
    print("| --- | --- | --- | --- | --- | --- |")
    for dtype in DTYPES:
        model = MODELS[name].tiny().to(dtype)
        for label, (case, reference) in CASES.items():
            eager = reference(model, "eager")
            largest = eager.abs().max().item()
            ours, theirs = Difference.of(case(model, "tessera"), eager), Difference.of(reference(model, "sdpa"), eager)
            own = "" if case is reference else Difference.of(case(model, "eager"), eager)
            print(f"| {str(dtype)[6:]} | {label} | {largest:.2g} | {ours} | {theirs} | {own} |")
            good &= ours.worst <= 1e-4 * largest if dtype == torch.float32 else ours.mean <= 1.5 * theirs.mean
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    with torch.no_grad():
        main()
