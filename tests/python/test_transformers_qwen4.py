"""Qwen4-Exp in tiny random models, against the model's own eager attention.

Eight index heads: with few of them some blocks score exactly 0, and the model's code leaves ties at the cut to `torch.topk`.
"""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
qwen4 = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")

import tessera  # noqa: E402
import tessera.integrations.transformers as hf  # noqa: E402
from language_models import (  # noqa: E402
    PAD,
    VOCABULARY,
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
from tessera.integrations.transformers import _mask  # noqa: E402
from transformers.cache_utils import DynamicIndexedLayer, StaticIndexedLayer  # noqa: E402

BLOCK, BUDGET = 4, 32
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "hc_count": 2,
    "hc_lowrank": 16,
    "indexer_n_heads": 8,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": BUDGET,
    "indexer_compress_ratio": BLOCK,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": PAD,
}
LAYERS = {
    # As in the released model, and nothing but indexed layers, which can be cropped.
    "mixed": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
    "indexed": ["indexed_attention"] * 2,
}


def build(layers: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    config = transformers.Qwen4ExpTextConfig(**SIZES, layer_types=LAYERS[layers], num_hidden_layers=len(LAYERS[layers]))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))  # weights of norms are not all alike
    return model.to(dtype)


@pytest.fixture(autouse=True)
def enabled():
    with torch.no_grad():
        hf.enable()
        yield
        hf.disable()


@pytest.fixture(scope="module", params=LAYERS)
def model(request):
    return build(request.param)


@pytest.fixture(scope="module")
def indexed():
    return build("indexed")


# ---- The same numbers as the model's own attention ----


@pytest.mark.parametrize("length", [1, 3, 4, 35, 36, 130])
@pytest.mark.parametrize("batch", [1, 3])
def test_prefill(model, length, batch):
    ids = tokens(length, batch)
    with hf.collect(record=True) as stats:
        got = run(model, "tessera", ids)
    assert_close(got, run(model, "eager", ids))
    assert stats.calls == 2
    for lists in stats.selections.values():
        assert lists[0].shape == (batch, 1, length, min(max(length // BLOCK, 1), BUDGET // BLOCK))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("steps", [[40, 41, 20], [70, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 64], [33, 7, 1], [2, 1]])
def test_chunks_and_decode(model, cache, steps):
    ids = tokens(sum(steps), batch=2)
    assert_close(in_steps(model, "tessera", ids, steps, new_cache(model, cache)), run(model, "eager", ids))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_selections_in_low_precision_are_the_models_own(dtype):
    model = build("indexed", dtype)
    ids = tokens(130, 2)
    chosen = []
    hook = model.model.layers[0].self_attn.indexer.register_forward_hook(lambda *call: chosen.append(call[2]))
    run(model, "eager", ids)
    with hf.collect(record=[0]) as stats:
        run(model, "tessera", ids)
    hook.remove()
    # [B, Q, S] of the first token of each block, where it is complete for the row.
    expected = chosen[0][:, 0, :, ::BLOCK].clone()
    for row in range(130):
        expected[:, row, (row + 1) // BLOCK :] = False
    got = torch.zeros_like(expected).int()
    lists = stats.selections[0][0][:, 0].long()
    got.scatter_add_(2, lists.clamp(min=0), (lists >= 0).int())
    differing = (got.bool() != expected).any(dim=2)
    # Scores that differ in f32's last digit may swap places at the cut, or tie there.
    assert differing.float().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logits_in_low_precision(model, dtype):
    ids = tokens(100, batch=2)
    exact = run(model, "eager", ids)
    low = build("indexed" if model.config.num_hidden_layers == 2 else "mixed", dtype)
    ours, theirs = ((run(low, name, ids).float() - exact).abs().mean() for name in ("tessera", "eager"))
    assert ours < 1.2 * theirs


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_a_padded_batch_gives_each_request_what_it_gets_alone(model, side, cache):
    assert_padding_changes_nothing(model, [50, 50, 1, 83, 20], side, cache)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_chunks_that_are_all_padding(indexed, cache):
    lengths = [90, 20]
    ids, mask = padded(lengths)
    logits = in_steps(indexed, "tessera", ids, [32, 32, 20, 1, 1, 4], new_cache(indexed, cache), mask)
    # Positions count the padding here, but rotary embeddings know distances only.
    for i, length in enumerate(lengths):
        assert_close(logits[i, mask[i].bool()], run(indexed, "eager", tokens(length, seed=i))[0])


def test_positions_of_images(indexed):
    ids = tokens(120, batch=2)
    positions = torch.arange(120).expand(3, 2, -1).clone()
    # 30 tokens of an image of 5 x 6 at one time, and text after it.
    positions[:, :, 40:70] = 40
    positions[1, :, 40:70] += torch.arange(30) // 6
    positions[2, :, 40:70] += torch.arange(30) % 6
    positions[:, :, 70:] -= 24
    expected = run(indexed, "eager", ids, position_ids=positions)
    assert_close(run(indexed, "tessera", ids, position_ids=positions), expected)
    cache = new_cache(indexed, "dynamic")
    indexed.set_attn_implementation("tessera")
    for part in (slice(0, 50), slice(50, 51), slice(51, 120)):
        logits = indexed(ids[:, part], position_ids=positions[:, :, part], cache=cache, use_cache=True).logits
        assert_close(logits, expected[:, part])


def test_text_about_an_image():
    torch.manual_seed(1)
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": 4,
        "temporal_patch_size": 1,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
    }
    start, image, end, video = range(VOCABULARY - 4, VOCABULARY)
    config = transformers.Qwen4ExpConfig(
        text_config=build("mixed").config.to_dict(),
        vision_config=vision,
        vision_start_token_id=start,
        image_token_id=image,
        vision_end_token_id=end,
        video_token_id=video,
    )
    model = transformers.Qwen4ExpForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    ids = tokens(70) % start
    ids[0, 30], ids[0, 31:55], ids[0, 55] = start, image, end
    given = {
        "pixel_values": torch.randn(96, 3 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 8, 12]]),
        "mm_token_type_ids": (ids == image).long(),
    }
    expected, got = (run(model, name, input_ids=ids, **given) for name in ("eager", "tessera"))
    assert_close(got, expected)
    given["suppress_tokens"] = [PAD, start, image, end, video]
    expected, got = (generate(model, name, ids, torch.ones_like(ids), **given) for name in ("eager", "tessera"))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_beams": 3},
        {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5},
        {"prefill_chunk_size": 20},
    ],
    ids=["greedy", "beams", "beams-returned", "chunked"],
)
def test_text_equals_the_models_own(model, cache, how):
    ids, mask = padded([31, 60, 60])
    # The embedding of padding is 0, as then are all scores of its row: nothing but ties.
    how = {**how, "cache_implementation": cache, "suppress_tokens": [PAD]}
    expected, got = (generate(model, name, ids, mask, **how) for name in ("eager", "tessera"))
    assert torch.equal(got, expected)


def test_assisted_text_equals_plain_text(indexed, monkeypatch):
    # The framework refuses it for the class, whose linear layers have a state; without them there is nothing against it.
    monkeypatch.setattr(indexed, "_is_stateful", False, raising=False)
    ids = tokens(20).repeat(1, 3)  # repetitive, so that looked-up candidates are accepted
    mask = torch.ones_like(ids)
    plain = generate(indexed, "eager", ids, mask, suppress_tokens=[PAD])
    assisted = generate(indexed, "tessera", ids, mask, suppress_tokens=[PAD], prompt_lookup_num_tokens=4)
    assert torch.equal(assisted, plain)


# ---- The cache ----


def step(model, cache, ids: torch.Tensor) -> torch.Tensor:
    return run(model, "tessera", ids, cache=cache, use_cache=True)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("removed", [1, 2, 5, 30])
def test_cropped(indexed, kind, removed):
    ids, other = tokens(90, 2), tokens(40, 2, seed=7)
    cache = new_cache(indexed, kind)
    step(indexed, cache, ids)
    cache.crop(-removed)
    text = torch.cat([ids[:, : 90 - removed], other], dim=1)
    expected = run(indexed, "eager", text)[:, 90 - removed :]
    assert_close(step(indexed, cache, other[:, :1]), expected[:, :1])
    assert_close(step(indexed, cache, other[:, 1:]), expected[:, 1:])


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_reordered_and_reset(indexed, kind):
    ids, more = tokens(70, 3), tokens(9, 3, seed=3)
    order = torch.tensor([2, 0, 0])
    cache = new_cache(indexed, kind)
    step(indexed, cache, ids)
    cache.reorder_cache(order)
    expected = run(indexed, "eager", torch.cat([ids[order], more], dim=1))[:, 70:]
    assert_close(torch.cat([step(indexed, cache, more[:, i : i + 1]) for i in range(9)], dim=1), expected)
    cache.reset()
    assert_close(step(indexed, cache, more), run(indexed, "eager", more))


def test_repeated_and_selected(indexed):
    ids, more = tokens(70, 2), tokens(9, 4, seed=3)
    cache = new_cache(indexed, "dynamic")
    step(indexed, cache, ids)
    cache.batch_repeat_interleave(2)
    text = torch.cat([ids.repeat_interleave(2, dim=0), more], dim=1)
    expected = run(indexed, "eager", text)[:, 70:]
    assert_close(step(indexed, cache, more[:, :5]), expected[:, :5])
    kept = torch.tensor([3, 1])
    cache.batch_select_indices(kept)
    assert_close(step(indexed, cache, more[kept, 5:]), expected[kept, 5:])


def test_padded_requests_in_a_new_order(indexed):
    ids, mask = padded([80, 53])
    more = tokens(5, 2, seed=3)
    cache = new_cache(indexed, "dynamic")
    run(indexed, "tessera", ids, attention_mask=mask, cache=cache, use_cache=True)
    cache.reorder_cache(torch.tensor([1, 0]))
    mask = torch.cat([mask[[1, 0]], torch.ones_like(more)], dim=1)
    logits = run(indexed, "tessera", more, attention_mask=mask, cache=cache, use_cache=True)
    for i, length in enumerate([53, 80]):
        text = torch.cat([tokens(length, seed=1 - i), more[i : i + 1]], dim=1)
        assert_close(logits[i], run(indexed, "eager", text)[0, length:])


def test_a_step_copies_nothing_and_compresses_what_it_completes(indexed, monkeypatch):
    cache = new_cache(indexed, "dynamic")
    step(indexed, cache, tokens(70))
    layer = cache.layers[0]
    held = [layer.keys.data_ptr(), layer.values.data_ptr(), layer.indexer_keys.data_ptr()]
    compressed = []
    original = tessera.qsa_compress_keys
    monkeypatch.setattr(
        tessera,
        "qsa_compress_keys",
        lambda raw, *args, **kwargs: compressed.append(raw.shape[1]) or original(raw, *args, **kwargs),
    )
    for _ in range(8):
        step(indexed, cache, tokens(1))
    assert compressed == [BLOCK] * 4  # tokens 72 and 76, in two layers
    assert held == [layer.keys.data_ptr(), layer.values.data_ptr(), layer.indexer_keys.data_ptr()]


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_of_the_models_own_code_goes_on_and_back(indexed, kind):
    ids = tokens(100, 2)
    expected = run(indexed, "eager", ids)
    cache = new_cache(indexed, kind)
    framework = {"dynamic": DynamicIndexedLayer, "static": StaticIndexedLayer}[kind]
    at = 0
    for name, count in (("eager", 50), ("tessera", 10), ("eager", 13), ("tessera", 1), ("tessera", 26)):
        logits = run(indexed, name, ids[:, at : at + count], cache=cache, use_cache=True)
        assert_close(logits, expected[:, at : at + count])
        if at == 0:
            assert all(type(layer) is framework for layer in cache.layers)
        at += count
    assert all(isinstance(layer, framework) and type(layer) is not framework for layer in cache.layers)


def test_rotary_tables_are_of_the_new_tokens(indexed, monkeypatch):
    ids = tokens(103)
    cache = new_cache(indexed, "dynamic")
    step(indexed, cache, ids[:, :100])
    computed = []
    rotary = indexed.model.rotary_emb
    original = rotary.recomposition_frequencies
    monkeypatch.setattr(
        rotary, "recomposition_frequencies", lambda freq: computed.append(freq.shape[2]) or original(freq)
    )
    step(indexed, cache, ids[:, 100:101])
    assert computed == [BLOCK, BLOCK]  # cos and sin


# ---- Refused, and not ours ----


def test_refused(indexed):
    ids, mask = padded([30, 20])
    holes = mask.clone()
    holes[0, 10] = 0
    with pytest.raises(NotImplementedError, match="attention_mask has holes"):
        run(indexed, "tessera", ids, attention_mask=holes)
    with pytest.raises(NotImplementedError, match="attention_mask is a Tensor"):
        run(indexed, "tessera", ids, attention_mask=torch.ones(2, 1, 30, 30, dtype=torch.bool).tril())
    positions = torch.cat([torch.arange(10), torch.arange(20)])[None]
    with pytest.raises(NotImplementedError, match="packed"):
        run(indexed, "tessera", ids, position_ids=positions, use_cache=False)
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="gradients"):
        run(indexed, "tessera", ids)


def test_a_mask_takes_no_other_selection():
    masks = [_mask.CausalMask(1, 8, 8, 0, None) for _ in range(2)]
    with pytest.raises(TypeError):
        masks[0] & masks[1]


def test_other_implementations_keep_the_models_own_code(indexed):
    ids = tokens(60)
    expected = {name: run(indexed, name, ids) for name in ("eager", "sdpa")}
    changed = (qwen4.Qwen4ExpTextQSAIndexer, qwen4.Qwen4ExpTextRotaryEmbedding)
    ours = [owner.forward for owner in changed]
    hf.enable()  # again
    assert [owner.forward for owner in changed] == ours
    hf.disable()
    assert all(owner.forward.__module__ != ours[0].__module__ for owner in changed)
    for name, logits in expected.items():
        assert torch.equal(run(indexed, name, ids), logits)
