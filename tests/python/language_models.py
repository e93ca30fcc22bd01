"""Running tiny language models under different attention implementations."""

from __future__ import annotations

import pytest
import torch
import transformers

PAD = 0
VOCABULARY = 97


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models this small spend their time waiting for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokens(length: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(lengths: list[int], side: str = "left") -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of different lengths in one batch: ids and mask."""
    longest = max(lengths)
    ids = torch.full((len(lengths), longest), PAD)
    mask = torch.zeros_like(ids)
    for i, length in enumerate(lengths):
        at = slice(longest - length, longest) if side == "left" else slice(0, length)
        ids[i, at] = tokens(length, seed=i)[0]
        mask[i, at] = 1
    return ids, mask


def run(model, implementation: str, *args, **kwargs):
    model.set_attn_implementation(implementation)
    return model(*args, **kwargs).logits


def generate(model, implementation: str, ids: torch.Tensor, mask: torch.Tensor, **kwargs) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    kwargs = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": PAD, **kwargs}
    return model.generate(ids, attention_mask=mask, **kwargs)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to the accuracy of f32, after two layers."""
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def new_cache(model, kind: str):
    if kind == "dynamic":
        return transformers.DynamicCache(config=model.config)
    return transformers.StaticCache(config=model.config, max_cache_len=256)


def in_steps(model, implementation: str, ids: torch.Tensor, steps: list[int], cache, mask=None) -> torch.Tensor:
    """Logits of a text that is read in steps of so many tokens."""
    logits = []
    done = 0
    for step in steps:
        part = None if mask is None else mask[:, : done + step]
        logits.append(
            run(model, implementation, ids[:, done : done + step], attention_mask=part, cache=cache, use_cache=True)
        )
        done += step
    return torch.cat(logits, dim=1)


def assert_padding_changes_nothing(model, lengths: list[int], side: str, cache: str | None, alone="tessera") -> None:
    """A padded batch gives each request what attention implementation `alone` gives it without a batch."""
    ids, mask = padded(lengths, side)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    kwargs = {} if cache is None else {"cache": new_cache(model, cache), "use_cache": True}
    batch = run(model, "tessera", ids, attention_mask=mask, position_ids=positions, **kwargs)
    assert torch.isfinite(batch).all()
    for i, length in enumerate(lengths):
        assert_close(batch[i, mask[i].bool()], run(model, alone, tokens(length, seed=i))[0])
