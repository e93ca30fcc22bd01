"""MiniMax-M3 through the attention implementation, against the model's own eager attention."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

import tessera  # noqa: E402
import tessera.integrations.transformers as hf  # noqa: E402
from language_models import (  # noqa: E402
    assert_close,
    assert_padding_changes_nothing,
    generate,
    in_steps,
    new_cache,
    one_thread,  # noqa: F401
    padded,
    run,
    tokens,
)
from tessera.integrations.transformers._minimax_m3 import SparseCacheLayer  # noqa: E402
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING  # noqa: E402
from transformers.models.minimax_m3_vl import configuration_minimax_m3_vl as m3_config  # noqa: E402
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as m3  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples" / "transformers"
sys.path.insert(0, str(EXAMPLES))
from sparse_models import MODELS  # noqa: E402

tiny = MODELS["m3"].tiny


@pytest.fixture(autouse=True)
def enabled():
    with torch.no_grad():
        hf.enable(dense_threshold=0)  # so that a dense layer would be made sparse if the options reached it
        yield
        hf.disable()


@pytest.fixture(scope="module")
def model():
    return tiny()


def test_parity_table():
    done = subprocess.run([sys.executable, EXAMPLES / "parity.py"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n| ") == 11


@pytest.mark.parametrize("length", [1, 16, 17, 64, 65, 200])
def test_prefill(model, length):
    ids = tokens(length, batch=2)
    with hf.collect(record=True) as stats:
        assert_close(run(model, "tessera", ids), run(model, "eager", ids))
    assert stats.calls == 3
    assert set(stats.selections) == {1, 2}  # the first layer is dense


@pytest.mark.parametrize(
    "change",
    [
        {"index_topk_blocks": 100},
        {"index_topk_blocks": 1},
        {"index_local_blocks": 3},
        {"index_local_blocks": 0},
        {"index_block_size": 24},
        {"index_n_heads": 1},
        {"index_head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
        {"num_attention_heads": 2, "head_dim": 32},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ],
    ids=lambda change: ",".join(f"{name}={value}" for name, value in change.items() if name != "rope_parameters") or "rope",
)  # fmt: skip
def test_configurations(change):
    model = tiny(**change)
    ids = tokens(150, batch=2)
    whole = run(model, "eager", ids)
    assert_close(run(model, "tessera", ids), whole)
    assert_close(in_steps(model, "tessera", ids, [100, 40] + [1] * 10, new_cache(model, "dynamic")), whole)


def test_bf16_is_as_exact_as_the_models_own_sdpa(model):
    ids = tokens(150, batch=2)
    exact = run(model, "eager", ids)
    low = copy.deepcopy(model).to(torch.bfloat16)
    ours, theirs = ((run(low, name, ids).float() - exact).abs().mean() for name in ("tessera", "sdpa"))
    assert ours < 1.3 * theirs


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("steps", [[70, 70, 10], [140] + [1] * 10, [1, 1, 100], [129, 7, 1]], ids=str)
def test_chunks_and_decode(model, cache, steps):
    ids = tokens(sum(steps), batch=2)
    assert_close(in_steps(model, "tessera", ids, steps, new_cache(model, cache)), run(model, "eager", ids))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_a_padded_batch_gives_each_request_what_it_gets_alone(model, side, cache):
    assert_padding_changes_nothing(model, [150, 150, 1, 97, 20], side, cache, alone="eager")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_text_of_a_padded_batch_is_that_of_each_request(model, cache):
    lengths = [90, 131, 131]
    texts = generate(model, "tessera", *padded(lengths), cache_implementation=cache)
    for i, length in enumerate(lengths):
        ids = tokens(length, seed=i)
        alone = generate(model, "eager", ids, torch.ones_like(ids))
        assert torch.equal(texts[i, -24:], alone[0, -24:])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"prefill_chunk_size": 50}], ids=["greedy", "beams", "chunked"])
def test_text_equals_that_of_eager_attention(model, cache, how):
    ids = tokens(120, batch=2)
    expected, got = (
        generate(model, name, ids, torch.ones_like(ids), cache_implementation=cache, **how)
        for name in ("eager", "tessera")
    )
    assert torch.equal(got, expected)


def test_assisted_text_equals_that_of_eager_attention(model):
    ids = tokens(20).repeat(1, 5)  # repetitive, so that looked-up candidates are accepted
    mask = torch.ones_like(ids)
    expected = generate(model, "eager", ids, mask)
    assert torch.equal(generate(model, "tessera", ids, mask, prompt_lookup_num_tokens=4), expected)
    assistant = tiny(num_hidden_layers=1, layer_types=["minimax_m3_sparse"], mlp_layer_types=["dense"])
    assistant.set_attn_implementation("tessera")
    assert torch.equal(generate(model, "tessera", ids, mask, assistant_model=assistant), expected)


def test_a_decode_step_moves_no_cached_token(model, monkeypatch):
    ids = tokens(140)
    cache = new_cache(model, "dynamic")
    run(model, "tessera", ids[:, :130], cache=cache)
    layer = cache.layers[1]
    assert isinstance(layer, SparseCacheLayer)
    run(
        model, "tessera", ids[:, 130:131], cache=cache
    )  # the layer without an indexer moves once, when it is taken over
    dense = cache.layers[0]
    before = [x.data_ptr() for x in (layer.keys, layer.values, layer.idx_keys, dense.keys, dense.values)]
    for at in range(131, 140):
        run(model, "tessera", ids[:, at : at + 1], cache=cache)
    assert [x.data_ptr() for x in (layer.keys, layer.values, layer.idx_keys, dense.keys, dense.values)] == before
    # The kernels read the cache itself.
    seen = []
    attend, select = tessera.msa_sparse_decode_attention, tessera.msa_select
    monkeypatch.setattr(tessera, "msa_sparse_decode_attention", lambda q, k, v, *a, **o: (seen.extend((k, v)), attend(q, k, v, *a, **o))[1])  # noqa: E501  # fmt: skip
    monkeypatch.setattr(tessera, "msa_select", lambda q, k, **o: (seen.append(k), select(q, k, **o))[1])
    run(model, "tessera", tokens(1), cache=cache)
    assert [x.data_ptr() for x in seen[:3]] == [x.data_ptr() for x in (layer.idx_keys, layer.keys, layer.values)]


def test_nothing_changes_for_other_implementations(model):
    ids = tokens(100, batch=2)
    during = run(model, "eager", ids), generate(model, "eager", ids, torch.ones_like(ids))
    hf.disable()
    assert torch.equal(run(model, "eager", ids), during[0])
    assert torch.equal(generate(model, "eager", ids, torch.ones_like(ids)), during[1])


def test_disable_restores_the_model_code():
    ours = m3.MiniMaxM3VLIndexer.forward, DYNAMIC_LAYER_TYPE_MAPPING["minimax_m3_sparse"]
    hf.enable()
    assert ours == (m3.MiniMaxM3VLIndexer.forward, DYNAMIC_LAYER_TYPE_MAPPING["minimax_m3_sparse"])
    hf.disable()
    hf.disable()
    assert m3.MiniMaxM3VLIndexer.forward.__module__ != ours[0].__module__
    assert DYNAMIC_LAYER_TYPE_MAPPING["minimax_m3_sparse"] is m3.MiniMaxM3VLSparseCacheLayer
    assert ours[1] is SparseCacheLayer


def test_a_cache_from_before_works_and_a_cache_of_ours_works_after(model):
    ids = tokens(120)
    whole = run(model, "eager", ids)
    hf.disable()
    cache = new_cache(model, "dynamic")
    hf.enable()
    assert_close(in_steps(model, "tessera", ids, [100, 19, 1], cache), whole)
    cache = new_cache(model, "dynamic")
    hf.disable()
    assert_close(in_steps(model, "eager", ids, [100, 19, 1], cache), whole)


def test_the_vision_tower_keeps_the_frameworks_attention():
    vision = m3_config.MiniMaxM3VLVisionConfig(
        hidden_size=36, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4
    )
    text = tiny().config
    config = m3_config.MiniMaxM3VLConfig(
        text_config=text, vision_config=vision, image_token_index=5, video_token_index=6, projector_hidden_size=64
    )
    torch.manual_seed(0)
    model = m3.MiniMaxM3SparseForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    grid = torch.tensor([[1, 4, 4], [1, 4, 8]])
    pixels = torch.randn(int(grid.prod(dim=1).sum()), 3 * 2 * 4 * 4)
    ids = tokens(80) % 90 + 7
    ids[0, 3:7], ids[0, 20:28] = 5, 5
    given = {"pixel_values": pixels, "image_grid_thw": grid}
    expected = run(model, "eager", ids, **given)
    with hf.collect() as stats:
        assert_close(run(model, "tessera", ids, **given), expected)
    assert stats.calls == 3  # the text's layers


def test_statistics(model):
    ids = tokens(100)
    with hf.collect() as stats:
        run(model, "tessera", ids)
    visible = [min(t // 16, 3) * 16 + t % 16 + 1 for t in range(100)]
    assert stats.keys_dense == 3 * 2 * 5050
    assert stats.keys_read == 2 * (5050 + 2 * sum(visible))
    assert stats.select_s > 0


def test_refusals(model):
    ids, mask = padded([100, 80])
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="gradients"):
        run(model, "tessera", ids)
    with pytest.raises(NotImplementedError, match="output_attentions"):
        run(model, "tessera", ids, output_attentions=True)
    mask[0, 50] = 0
    with pytest.raises(NotImplementedError, match="holes"):
        run(model, "tessera", ids, attention_mask=mask)
    with pytest.raises(NotImplementedError, match="indexer has 4 heads and the keys 2"):
        run(tiny(index_n_heads=4), "tessera", ids)
    with pytest.raises(ValueError, match="local_blocks"):
        run(tiny(index_local_blocks=5), "tessera", ids)
