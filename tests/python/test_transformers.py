"""The attention implementation in tiny random models, against the framework's own attention.

Weights are random but larger than at initialisation, so that attention is far from uniform and an error in it shows.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

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
from tessera.integrations.transformers import _attention, _decode, _mask  # noqa: E402
from transformers.masking_utils import bidirectional_mask_function  # noqa: E402

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=None),
    # Scores scaled by another number than 1 / sqrt(D).
    "granite": lambda: transformers.GraniteConfig(**SIZES, attention_multiplier=0.6),
    # Values narrower than keys, one KV head per query head.
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4},
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        first_k_dense_replace=2,
    ),
}
# Blocks of 16 and lists of 4 blocks, so that short texts already have something to select from.
SPARSE = {"block_size": 16, "block_q": 16, "budget": 64, "stride": 4}
SELECTORS = ["mass", "moba", "window", "random"]


def build(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(sum(map(ord, name)))
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    return model


@pytest.fixture(autouse=True)
def enabled():
    with torch.no_grad():
        hf.enable(selector="dense")
        yield
        hf.disable()


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return build(request.param)


@pytest.fixture(scope="module")
def llama():
    return build("llama")


# ---- Dense: the same numbers as the framework's own attention ----


@pytest.mark.parametrize("length", [1, 2, 63, 129])
@pytest.mark.parametrize("batch", [1, 3])
def test_prefill(model, length, batch):
    ids = tokens(length, batch)
    with hf.collect() as stats:
        assert_close(run(model, "tessera", ids), run(model, "sdpa", ids))
    assert stats.calls == model.config.num_hidden_layers


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("steps", [[40, 40, 20], [70, 1, 1, 1], [1, 1, 64], [33, 7, 1]])
def test_chunks_and_decode(model, cache, steps):
    ids = tokens(sum(steps), batch=2)
    whole = run(model, "sdpa", ids)
    assert_close(in_steps(model, "tessera", ids, steps, new_cache(model, cache)), whole)


def test_bf16_and_f16(llama):
    ids = tokens(100, batch=2)
    exact = run(llama, "sdpa", ids)
    for dtype in (torch.bfloat16, torch.float16):
        low = build("llama").to(dtype)
        # Both round in every layer; neither may be further from f32 than about the other is.
        ours, theirs = ((run(low, name, ids).float() - exact).abs().mean() for name in ("tessera", "sdpa"))
        assert ours < 1.5 * theirs


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_a_padded_batch_gives_each_request_what_it_gets_alone(model, side, cache):
    assert_padding_changes_nothing(model, [50, 50, 1, 83, 20], side, cache)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_decode_behind_padding_that_all_requests_share(llama, cache):
    ids = torch.cat([torch.full((2, 9), PAD), tokens(50, batch=2)], dim=1)
    mask = (ids != PAD).long()
    expected = run(llama, "sdpa", ids[:, 9:])
    assert_close(in_steps(llama, "tessera", ids, [40, 1, 1, 17], new_cache(llama, cache), mask)[:, 9:], expected)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_chunks_that_are_all_padding(llama, cache):
    lengths = [90, 20]
    ids, mask = padded(lengths)
    logits = in_steps(llama, "tessera", ids, [32, 32, 20, 6], new_cache(llama, cache), mask)
    # Positions count the padding here, but rotary embeddings know distances only.
    for i, length in enumerate(lengths):
        assert_close(logits[i, mask[i].bool()], run(llama, "sdpa", tokens(length, seed=i))[0])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_text_equals_the_frameworks(model, cache):
    ids, mask = padded([31, 60, 60])
    expected, got = (generate(model, name, ids, mask, cache_implementation=cache) for name in ("sdpa", "tessera"))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    "how",
    [
        {"num_beams": 3},
        {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5},
        {"prefill_chunk_size": 20},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    ],
    ids=["beams", "beams-returned", "chunked", "penalties"],
)
def test_text_equals_the_frameworks(llama, cache, how):
    ids, mask = padded([31, 60, 60])
    expected, got = (
        generate(llama, name, ids, mask, cache_implementation=cache, **how) for name in ("sdpa", "tessera")
    )
    assert torch.equal(got, expected)


def test_assisted_text_equals_plain_text(llama):
    ids = tokens(20).repeat(1, 3)  # repetitive, so that looked-up candidates are accepted
    mask = torch.ones_like(ids)
    plain = generate(llama, "tessera", ids, mask)
    # Verifying a few candidates at once is decode: exact, whatever the selector.
    with hf.options(selector="mass", dense_threshold=0, **SPARSE):
        lookup = generate(llama, "tessera", ids, mask, prompt_lookup_num_tokens=4)
        single = generate(llama, "tessera", ids, mask)
    assert torch.equal(lookup, single)
    assert plain.shape == single.shape


def test_models_loaded_with_the_implementation(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="tessera").eval()
    ids = tokens(70)
    assert_close(loaded(ids).logits, run(llama, "sdpa", ids))


def test_the_output_needs_no_copy(llama):
    q, k = (torch.randn(2, heads, 30, 16) for heads in (4, 2))
    mask = _mask.CausalMask(2, 30, 30, 0, None)
    out, weights = _attention.attention(SimpleNamespace(), q, k, k, mask)
    assert out.shape == (2, 30, 4, 16)
    assert out.is_contiguous()
    assert weights is None


# ---- Sparse ----


def test_a_budget_for_all_blocks_is_dense_bit_by_bit(llama):
    ids, mask = padded([200, 150])
    dense = run(llama, "tessera", ids, attention_mask=mask)
    for selector in SELECTORS:
        # Blocks as long as the dense path's, so that sums are taken in the same order.
        with hf.options(selector=selector, block_size=128, budget=384, dense_threshold=0), hf.collect() as stats:
            assert torch.equal(run(llama, "tessera", ids, attention_mask=mask), dense)
        assert stats.keys_read == stats.keys_dense
        with hf.options(selector=selector, budget=256), hf.collect(record=True) as stats:
            assert torch.equal(run(llama, "tessera", ids, attention_mask=mask), dense)
        assert not stats.selections  # below the threshold


@pytest.mark.parametrize("selector", SELECTORS)
def test_selection_changes_something_and_is_causal_at_list_boundaries(llama, selector):
    ids = tokens(160)
    dense = run(llama, "tessera", ids)
    changed = ids.clone()
    changed[0, 112:] = tokens(48, seed=9)
    with hf.options(selector=selector, **SPARSE):
        sparse = run(llama, "tessera", ids)
        later = run(llama, "tessera", changed)
    assert_close(sparse[:, :64], dense[:, :64])
    assert not torch.allclose(sparse[:, 64:], dense[:, 64:], atol=1e-3)
    # Lists hold for 16 queries: those before token 112 know nothing of what follows it.
    if selector != "random":
        assert torch.equal(later[:, :112], sparse[:, :112])


@pytest.mark.parametrize("selector", ["mass", "moba", "window"])
def test_sparse_in_chunks_of_whole_lists_is_sparse_at_once(llama, selector):
    ids = tokens(160)
    with hf.options(selector=selector, **SPARSE):
        at_once = run(llama, "tessera", ids)
        in_chunks = in_steps(llama, "tessera", ids, [64, 32, 64], new_cache(llama, "dynamic"))
    assert_close(in_chunks, at_once)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("selector", ["mass", "moba", "window"])
def test_a_padded_sparse_batch_gives_each_request_what_it_gets_alone(llama, selector, side):
    lengths = [150, 97, 60]
    ids, mask = padded(lengths, side)
    with hf.options(selector=selector, **SPARSE):
        batch = run(llama, "tessera", ids, attention_mask=mask)
        for i, length in enumerate(lengths):
            assert_close(batch[i, mask[i].bool()], run(llama, "tessera", tokens(length, seed=i))[0])


def test_dense_layers(llama):
    ids = tokens(160)
    with hf.options(selector="window", dense_layers=(0,), **SPARSE), hf.collect(record=True) as stats:
        run(llama, "tessera", ids)
    assert list(stats.selections) == [1]
    with hf.options(selector="window", dense_layers=(0, 1), **SPARSE):
        all_dense = run(llama, "tessera", ids)
    assert torch.equal(all_dense, run(llama, "tessera", ids))


@pytest.mark.parametrize("queries", [160, 150, 33])
def test_window_and_random_lists(queries):
    keys = 160
    q, k = torch.zeros(2, queries, 4, 16), torch.zeros(2, keys, 2, 16)
    blocks = {}
    for selector in ("window", "random"):
        with hf.options(selector=selector, **SPARSE) as options:
            lists = _attention._select.select(options, q, k, None, 0)
        assert lists.dtype == torch.int32
        assert lists.shape == (2, 2, -(-queries // 16), 4)
        blocks[selector] = lists
        for (_, _, index), row in np.ndenumerate(np.array([[[set(r) for r in h] for h in b] for b in lists.tolist()])):
            first = keys - queries + 16 * index
            last = min(first + 15, keys - 1)
            ids = row - {-1}
            assert len(ids) == min(4, last // 16 + 1)
            assert {0, *range(first // 16, last // 16 + 1)} <= ids
            assert max(ids) == last // 16
            if selector == "window" and len(ids) == 4:
                assert ids == {0, *range(last // 16 - 2, last // 16 + 1)}
    assert not torch.equal(blocks["window"], blocks["random"])


@pytest.mark.parametrize("selector", ["mass", "moba"])
@pytest.mark.parametrize(
    "change", [{"init_blocks": 2}, {"local_blocks": 3}, {"budget": 96}, {"stride": 16}, {"block_q": 8}], ids=str
)
def test_options_reach_the_selectors(selector, change):
    torch.manual_seed(0)
    q, k = torch.randn(1, 320, 4, 16), torch.randn(1, 320, 2, 16)
    lists = []
    for options in (SPARSE, {**SPARSE, **change}):
        with hf.options(selector=selector, **options) as current:
            lists.append(_attention._select.select(current, q, k, 1.0, 0))
    assert torch.equal(*lists) == (selector == "moba" and "stride" in change)
    if "init_blocks" in change:
        assert (lists[1][:, :, 2:, :2] == torch.tensor([0, 1])).all()
    if "local_blocks" in change:
        own = torch.arange(3, 20)
        assert (lists[1][:, :, 3:, -3:] == own[:, None] + torch.arange(-2, 1)).all()


def test_scaling_reaches_the_selector():
    torch.manual_seed(0)
    q, k = torch.randn(1, 320, 4, 16), torch.randn(1, 320, 2, 16)
    with hf.options(selector="mass", **SPARSE) as options:
        assert not torch.equal(*(_attention._select.select(options, q, k, scaling, 0) for scaling in (0.02, 2.0)))


# ---- Sparse decode ----


def decode(model, ids: torch.Tensor, prompt: int, cache, mask=None) -> torch.Tensor:
    return in_steps(model, "tessera", ids, [prompt] + [1] * (ids.shape[1] - prompt), cache, mask)


SPARSE_DECODE = {"selector": "mass", "decode": "sparse", "refresh": 8, **SPARSE}


def test_decode_is_exact_unless_asked(llama):
    ids = tokens(160)
    expected = decode(llama, ids, 120, new_cache(llama, "dynamic"))
    with hf.options(selector="mass", dense_threshold=1000, **SPARSE):
        assert torch.equal(decode(llama, ids, 120, new_cache(llama, "dynamic")), expected)
    with hf.options(**SPARSE_DECODE), hf.collect() as stats:
        assert not torch.allclose(
            decode(llama, ids, 120, new_cache(llama, "dynamic"))[:, 120:], expected[:, 120:], atol=1e-3
        )
    assert stats.decode.keys_read < 0.6 * stats.decode.keys_dense


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_list_serves_refresh_tokens_and_the_blocks_that_begin_meanwhile(llama, cache):
    ids = tokens(160)
    with hf.options(**SPARSE_DECODE), hf.collect(record=[0]) as stats:
        decode(llama, ids, 121, new_cache(llama, cache))
    lists = [row[0, 0, 0].tolist() for row in stats.selections[0] if row.shape[2] == 1]
    assert len(lists) == 160 - 121
    for step, row in enumerate(lists):
        chosen_at = step - step % 8
        chosen, own_then, own = lists[chosen_at], (121 + chosen_at) // 16, (121 + step) // 16
        assert {0, own_then} <= set(chosen)
        assert len(chosen) == 4
        assert row == chosen + list(range(own_then + 1, own + 1))


def test_sparse_decode_of_all_blocks_is_dense(llama):
    ids, mask = padded([140, 100])
    expected = decode(llama, ids, 110, new_cache(llama, "dynamic"), mask)
    with hf.options(**{**SPARSE_DECODE, "budget": 256, "dense_threshold": 0}):
        assert_close(decode(llama, ids, 110, new_cache(llama, "dynamic"), mask)[mask.bool()], expected[mask.bool()])


def test_sequences_that_take_turns_choose_at_every_turn(llama):
    texts = [tokens(140, seed=seed) for seed in (1, 2)]
    texts[1][0, 99] = texts[0][0, 99]
    with hf.options(**{**SPARSE_DECODE, "refresh": 1}):
        expected = [decode(llama, text, 100, new_cache(llama, "dynamic")) for text in texts]
    with hf.options(**SPARSE_DECODE):
        turns = [(text, new_cache(llama, "dynamic"), logits) for text, logits in zip(texts, expected, strict=True)]
        for at in [slice(0, 100)] + [slice(at, at + 1) for at in range(100, 140)]:
            for text, cache, logits in turns:
                assert torch.equal(run(llama, "tessera", text[:, at], cache=cache), logits[:, at])


def test_beams_that_change_places_choose_anew(llama):
    ids = tokens(130, batch=2)
    ids[1] = tokens(130, seed=5)[0]
    with hf.options(**SPARSE_DECODE):
        cache = new_cache(llama, "dynamic")
        decode(llama, ids[:, :125], 120, cache)
        cache.reorder_cache(torch.tensor([1, 0]))
        swapped = run(llama, "tessera", ids[[1, 0], 125:126], cache=cache)
        _decode.forget()
        fresh = new_cache(llama, "dynamic")
        in_steps(llama, "tessera", ids[[1, 0], :125], [120] + [1] * 5, fresh)
        _decode.forget()
        assert_close(swapped, run(llama, "tessera", ids[[1, 0], 125:126], cache=fresh))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_sparse_text_is_the_same_every_time(llama, cache):
    ids, mask = padded([90, 120])
    with hf.options(**SPARSE_DECODE):
        first = generate(llama, "tessera", ids, mask, cache_implementation=cache, num_beams=2)
        generate(llama, "tessera", *padded([110, 70]), cache_implementation=cache)
        again = generate(llama, "tessera", ids, mask, cache_implementation=cache, num_beams=2)
    assert torch.equal(first, again)


# ---- What is refused, and what is not ours ----


def call(**changes):
    """The attention function on small tensors, with some arguments changed."""
    q, k = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16)
    given = {"attention_mask": _mask.CausalMask(1, 8, 8, 0, None), "scaling": 0.25, **changes}
    return _attention.attention(SimpleNamespace(is_causal=True), q, k, k, **given)


@pytest.mark.parametrize(
    "argument",
    [
        {"dropout": 0.1},
        {"softcap": 50.0},
        {"s_aux": torch.zeros(4)},
        {"sinks": torch.zeros(4)},
        {"sliding_window": 4},
        {"position_bias": torch.zeros(1, 4, 8, 8)},
        {"output_attentions": True},
        {"cu_seq_lens_q": torch.tensor([0, 8])},
        {"block_indices": torch.zeros(1, 2, 8, 1)},
        {"something_new": 1.5},
        {"attention_mask": torch.ones(1, 1, 8, 8, dtype=torch.bool)},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_arguments_that_would_change_the_result(argument):
    with pytest.raises(NotImplementedError, match=next(iter(argument))):
        call(**argument)
    call(**dict.fromkeys(argument, None) if "attention_mask" not in argument and "dropout" not in argument else {})


def test_harmless_arguments():
    expected = call()[0]
    assert expected.shape == (1, 8, 4, 16)
    call(position_ids=torch.arange(8)[None], use_cache=True, output_attentions=False, sliding_window=None)


def test_refused_through_a_model(llama):
    ids, mask = padded([30, 20])
    holes = mask.clone()
    holes[0, 10] = 0
    with pytest.raises(NotImplementedError, match="attention_mask has holes"):
        run(llama, "tessera", ids, attention_mask=holes)
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 20\)"):
        run(llama, "tessera", ids, attention_mask=mask[:, :20])
    with pytest.raises(NotImplementedError, match="attention_mask is a Tensor"):
        run(llama, "tessera", ids, attention_mask=torch.ones(2, 1, 30, 30, dtype=torch.bool).tril())
    with pytest.raises(NotImplementedError, match="packed"):
        run(llama, "tessera", ids, position_ids=torch.cat([torch.arange(10), torch.arange(20)])[None], use_cache=False)
    with pytest.raises(NotImplementedError, match="output_attentions"):
        run(llama, "tessera", ids, output_attentions=True)
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="gradients"):
        run(llama, "tessera", ids)


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt_oss"])
def test_models_with_other_attention(kind):
    config = {
        "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=16),
        "gemma2": lambda: transformers.Gemma2Config(**SIZES, head_dim=16, layer_types=["full_attention"] * 2),
        "gpt_oss": lambda: transformers.GptOssConfig(
            **SIZES, head_dim=16, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2
        ),
    }[kind]()
    other = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="tessera").eval()
    with pytest.raises(NotImplementedError, match="sliding|softcap|s_aux"):
        other(tokens(20))


def test_attention_that_is_not_causal_is_the_frameworks():
    q, k = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 12, 16)
    mask = torch.rand(1, 1, 8, 12) > 0.2
    module = SimpleNamespace(is_causal=False, num_key_value_groups=2)
    for given in (None, mask):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=given, enable_gqa=True)
        assert_close(_attention.attention(module, q, k, k, given)[0], expected.transpose(1, 2))


def test_a_mask_that_is_not_causal_is_never_absent():
    # The framework may leave it out where all tokens see all; an absent mask could be taken for a causal one.
    assert _mask.causal_mask(1, 8, 8, mask_function=bidirectional_mask_function, allow_is_bidirectional_skip=True).all()


@pytest.mark.parametrize("kind", ["encoder", "decoder as an encoder"])
def test_encoders_run_on_the_frameworks_attention(kind):
    config = {
        "encoder": lambda: transformers.BertConfig(**SIZES),
        "decoder as an encoder": lambda: transformers.LlamaConfig(**SIZES, is_causal=False),
    }[kind]()
    encoder = transformers.AutoModel.from_config(config, attn_implementation="sdpa").eval()
    ids, mask = padded([20, 12], "right")
    expected = [encoder(ids, attention_mask=given).last_hidden_state for given in (mask, None)]
    encoder.set_attn_implementation("tessera")
    with hf.collect() as stats:
        for given, states in zip((mask, None), expected, strict=True):
            assert_close(encoder(ids, attention_mask=given).last_hidden_state, states)
    assert stats.calls == 0


# ---- Options and statistics ----


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("selector", "magic"),
        ("decode", "often"),
        ("block_size", 0),
        ("block_q", 1.5),
        ("budget", 1000),
        ("budget", 128),
        ("dense_threshold", -1),
        ("dense_layers", (-1,)),
        ("local_blocks", 0),
        ("local_blocks", 16),
        ("stride", True),
        ("refresh", 0),
        ("seed", -1),
    ],
)
def test_options_out_of_range(option, value):
    with pytest.raises(ValueError, match=f"enable: ({option}|budget) is"):
        hf.enable(**{option: value})
    with hf.options() as options:
        assert options.selector == "dense"  # as the fixture left it


def test_options_are_restored():
    hf.enable(budget=512)
    with hf.options(budget=256) as options:
        assert (options.budget, options.dense_threshold) == (256, 256)
        with hf.options(selector="moba", dense_threshold=300) as options:
            assert (options.selector, options.budget, options.dense_threshold) == ("moba", 256, 300)
    with hf.options() as options:
        assert (options.selector, options.budget, options.dense_threshold) == ("mass", 512, 512)
    with pytest.raises(TypeError, match="unknown"), hf.options(unknown=1):
        pass


def test_disable(llama):
    llama.set_attn_implementation("tessera")
    hf.disable()
    with pytest.raises(KeyError, match="tessera"):
        llama(tokens(5))
    with hf.options(selector="dense"):
        llama(tokens(5))
    with pytest.raises(KeyError, match="tessera"):
        llama(tokens(5))


@pytest.mark.parametrize("selector", SELECTORS)
def test_statistics(llama, selector):
    ids, mask = padded([150, 97])
    with hf.options(selector=selector, **SPARSE), hf.collect(record=True) as stats:
        run(llama, "tessera", ids, attention_mask=mask)
    assert (stats.calls, stats.prefill.calls, stats.decode.calls) == (4, 4, 0)
    assert stats.attention_s > 0
    assert stats.select_s > 0
    assert stats.keys_dense == 2 * 2 * (150 * 151 // 2 + 97 * 98 // 2)
    read = 0
    for of_layer in stats.selections.values():
        for lists, length in zip(of_layer, (150, 97), strict=True):
            for head, query in np.ndindex(2, length):
                blocks = [block for block in lists[0, head, query // 16].tolist() if block >= 0]
                read += sum(max(0, min(16, query + 1 - 16 * block)) for block in blocks)
    assert stats.keys_read == read


def test_recording_takes_the_layers_asked_for(llama):
    with hf.options(selector="window", **SPARSE), hf.collect(record=[1]) as stats:
        run(llama, "tessera", tokens(150))
    assert [(layer, len(lists)) for layer, lists in stats.selections.items()] == [(1, 1)]
    with pytest.raises(RuntimeError, match="already"), hf.collect(), hf.collect():
        pass
