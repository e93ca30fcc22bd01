"""Cache layers that grow in place, against the framework's own, which concatenate."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tessera.integrations.transformers._cache import GrowingLayer, GrowingTensor  # noqa: E402
from tessera.integrations.transformers._minimax_m3 import SparseCacheLayer  # noqa: E402
from transformers.cache_utils import DynamicLayer  # noqa: E402
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLSparseCacheLayer  # noqa: E402


def test_growth_copies_each_token_a_few_times():
    held, copied, expected = GrowingTensor(), 0, []
    for step in range(1000):
        new = torch.full((2, 3, 1, 4), float(step))
        before = held.get()
        after = held.append(new)
        expected.append(new)
        if before is not None and after.data_ptr() != before.data_ptr():
            copied += before.shape[-2]
    assert torch.equal(held.get(), torch.cat(expected, dim=-2))
    assert copied < 2 * 1000
    assert held.get().stride()[-2:] == (4, 1)


def test_what_was_assigned_is_never_written_over():
    theirs = torch.arange(12.0).view(1, 1, 6, 2)
    kept = theirs.clone()
    held = GrowingTensor()
    held.set(theirs)
    held.set(held.get()[..., :3, :])  # as crop does
    held.append(torch.zeros(1, 1, 2, 2))
    assert torch.equal(theirs, kept)
    assert torch.equal(held.get(), torch.cat([kept[..., :3, :], torch.zeros(1, 1, 2, 2)], dim=-2))


def test_gradients_reach_what_was_appended():
    held, parts = GrowingTensor(), [torch.ones(1, 1, 2, 2, requires_grad=True) for _ in range(3)]
    for part in parts:
        held.append(part * 2)
    held.get().square().sum().backward()
    assert all(torch.equal(part.grad, torch.full_like(part, 8)) for part in parts)


def test_copies_share_nothing():
    layer = GrowingLayer()
    layer.update(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    other = copy.deepcopy(layer)
    layer.update(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    other.update(torch.full((1, 1, 1, 2), 5.0), torch.zeros(1, 1, 1, 2))
    assert layer.keys[0, 0, 3, 0] == 0
    assert other.keys[0, 0, 3, 0] == 5


STEPS = {
    "update": lambda layer, dice: update(layer, int(torch.randint(1, 40, (), generator=dice)), dice),
    "crop": lambda layer, dice: layer.crop(-int(torch.randint(0, layer.get_seq_length(), (), generator=dice))),
    "reorder": lambda layer, dice: layer.reorder_cache(torch.randint(layer.keys.shape[0], (3,), generator=dice)),
    "repeat": lambda layer, dice: layer.batch_repeat_interleave(2),
    "select": lambda layer, dice: layer.batch_select_indices(torch.tensor([1, 0])),
    "reset": lambda layer, dice: (layer.reset(), update(layer, 5, dice)),
}


def update(layer, count, dice):
    batch = 2 if layer.keys is None or layer.keys.numel() == 0 else layer.keys.shape[0]
    keys, values = torch.randn(2, batch, 2, count, 4, generator=dice)
    returned = layer.update(keys, values)
    if isinstance(layer, MiniMaxM3VLSparseCacheLayer):
        returned += (layer.update_index(torch.randn(batch, 1, count, 6, generator=dice)),)
    return returned


@pytest.mark.parametrize(
    ("ours", "theirs"), [(GrowingLayer, DynamicLayer), (SparseCacheLayer, MiniMaxM3VLSparseCacheLayer)]
)
@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_operations(ours, theirs, seed):
    layers = ours(), theirs()
    dice = [torch.Generator().manual_seed(seed) for _ in layers]
    chosen = torch.randint(len(STEPS), (40,), generator=torch.Generator().manual_seed(100 + seed)).tolist()
    for index in [0, *chosen]:
        name = list(STEPS)[index]
        if name == "repeat" and layers[0].keys.shape[0] > 8:
            name = "select"
        results = [STEPS[name](layer, d) for layer, d in zip(layers, dice, strict=True)]
        if name == "update":
            assert all(map(torch.equal, *results))
        for attribute in ("keys", "values", "idx_keys"):
            if hasattr(layers[1], attribute):
                assert torch.equal(*(getattr(layer, attribute) for layer in layers))
        assert layers[0].get_seq_length() == layers[1].get_seq_length()
        assert layers[0].get_mask_sizes(3) == layers[1].get_mask_sizes(3)
