"""Indexers from a file, with random weights, beside tiny random models."""

from __future__ import annotations

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
from tessera.integrations.transformers._indexer import Indexer, Rotary, Shape  # noqa: E402

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": PAD,
}
BLOCKS = {"msa": 8, "qsa": 4}
BUDGET = 32
FORMS = pytest.mark.parametrize("form", BLOCKS)


def shape_of(form: str, model_type: str = "llama", **changes) -> Shape:
    sizes = {
        "form": form,
        "model_type": model_type,
        "hidden_size": 64,
        "layers": 2,
        "heads": 2 if form == "msa" else 8,
        "dim": 8,
        "block_size": BLOCKS[form],
        "rope_theta": 1e4,
    }
    return Shape(**{**sizes, **changes})


def indexer_file(directory, shape: Shape) -> str:
    torch.manual_seed(7)
    indexer = Indexer(shape)
    for parameter in indexer.branches.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    path = directory / f"{shape.form}-{shape.model_type}.safetensors"
    indexer.save(path, {"base_model": "tiny"})
    return str(path)


def build(model_type: str = "llama", dtype: torch.dtype = torch.float32):
    torch.manual_seed(1)
    windows = {"sliding_window": None} if model_type == "mistral" else {}
    config = transformers.AutoConfig.for_model(model_type, **SIZES, **windows)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model.to(dtype)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield
    hf.disable()


def enable(directory, form: str, model_type: str = "llama", **options) -> None:
    defaults = {"budget": BUDGET, "dense_threshold": 0, "decode": "sparse"}
    hf.enable(indexer=indexer_file(directory, shape_of(form, model_type)), **{**defaults, **options})


# ---- What is selected --------------------------------------------------------------------------------------------------


def best_blocks(form: str, indexer: Indexer, hidden: torch.Tensor) -> torch.Tensor:
    """bool [heads, S, N], by the definition, in f64: hidden [S, hidden] of the first layer."""
    shape, branch = indexer.shape, indexer.branches[0].double()
    hidden, position = hidden.double(), torch.arange(len(hidden))
    rotary = Rotary(position, shape, torch.float64)
    q, k = branch.queries(hidden, rotary).transpose(0, 1), branch.keys(hidden, rotary)
    size, topk = shape.block_size, BUDGET // shape.block_size
    own = position // size
    if form == "msa":
        scores = (q @ k.T).masked_fill(position > position[:, None], -torch.inf).unflatten(-1, (-1, size)).amax(-1)
        block = torch.arange(scores.shape[-1])
        forced = (block == 0) | (block == own[:, None])
        scores = scores.masked_fill(forced, torch.inf)
        visible = block <= own[:, None]
    else:
        k = k.unflatten(0, (-1, size)).mean(1)
        k = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + shape.eps) * (1 + branch.k_norm.weight)
        k = Rotary(position[::size], shape, torch.float64).turn(k)
        scores = (q @ k.T).relu().sum(0)[None]
        visible = torch.arange(scores.shape[-1]) < ((position + 1) // size)[:, None]
    scores = scores.masked_fill(~visible, -torch.inf)
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(-1, scores.topk(min(topk, scores.shape[-1]), dim=-1).indices, True)
    return chosen & visible


@FORMS
def test_selects_the_best_blocks(tmp_path, form):
    model, ids = build(), tokens(160)
    enable(tmp_path, form)
    seen = []
    layer = model.model.layers[0].self_attn
    handle = layer.register_forward_pre_hook(
        lambda _, args, given: seen.append(given["hidden_states"]), with_kwargs=True
    )
    with hf.collect(record=[0]) as stats:
        run(model, "tessera", ids)
    handle.remove()
    lists = stats.selections[0][0][0]  # [heads, S, K]
    expected = best_blocks(form, Indexer.load(indexer_file(tmp_path, shape_of(form))), seen[0][0])
    got = torch.zeros(*expected.shape[:2], expected.shape[2] + 1, dtype=torch.bool)
    got.scatter_(-1, lists.long() % got.shape[-1], True)  # -1 goes behind the last block
    assert torch.equal(got[..., :-1], expected)


@FORMS
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_budget_for_all_tokens_is_dense(tmp_path, form, model_type):
    model, ids = build(model_type), tokens(90, batch=2)
    expected = run(model, "eager", ids)
    enable(tmp_path, form, model_type, budget=96)
    with hf.collect() as stats:
        got = run(model, "tessera", ids)
    assert_close(got, expected)
    assert stats.select_s > 0


@FORMS
def test_a_smaller_budget_is_not(tmp_path, form):
    model, ids = build(), tokens(160)
    expected = run(model, "eager", ids)
    enable(tmp_path, form)
    with hf.collect() as stats:
        got = run(model, "tessera", ids)
    assert (got - expected).abs().max() > 1e-3 * expected.abs().max()
    assert stats.keys_read < 0.5 * stats.keys_dense


# ---- Caches ------------------------------------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("cache", ["dynamic", "without configuration", "static"])
@pytest.mark.parametrize("steps", [[160], [64, 96], [101, 1, 1, 1, 1, 55], [3, 2, 1, 154]])
def test_steps_change_nothing(tmp_path, form, cache, steps):
    model, ids = build(), tokens(160)
    enable(tmp_path, form)
    expected = run(model, "tessera", ids, use_cache=False)
    new = transformers.DynamicCache() if cache == "without configuration" else new_cache(model, cache)
    assert_close(in_steps(model, "tessera", ids, steps, new), expected)


@FORMS
def test_tokens_taken_back(tmp_path, form):
    model, ids = build(), tokens(160)
    enable(tmp_path, form)
    expected = run(model, "tessera", ids, use_cache=False)
    cache = new_cache(model, "dynamic")
    other = torch.cat([ids[:, :70], tokens(30, seed=5)], dim=1)
    in_steps(model, "tessera", other, [100], cache)
    cache.crop(-30)
    assert_close(in_steps(model, "tessera", ids[:, 70:], [90], cache), expected[:, 70:])
    cache.reset()
    assert_close(in_steps(model, "tessera", ids, [160], cache), expected)


@FORMS
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_padding_changes_nothing(tmp_path, form, side, cache):
    enable(tmp_path, form)
    assert_padding_changes_nothing(build(), [150, 83, 120, 120], side, cache)


@FORMS
@pytest.mark.parametrize("kwargs", [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"num_return_sequences": 2,
                                    "num_beams": 2}, {"prompt_lookup_num_tokens": 3}])  # fmt: skip
def test_generation_is_that_of_whole_texts(tmp_path, form, kwargs):
    model = build()
    enable(tmp_path, form)
    ids, mask = padded([120, 77]) if "prompt_lookup_num_tokens" not in kwargs else padded([120])
    got = generate(model, "tessera", ids, mask, **kwargs)
    if "cache_implementation" in kwargs or "prompt_lookup_num_tokens" in kwargs:
        kwargs = {}
    assert torch.equal(got, generate(model, "tessera", ids, mask, use_cache=False, **kwargs))


@FORMS
def test_dense_where_the_options_say_so(tmp_path, form):
    model, ids = build(), tokens(160)
    expected = run(model, "eager", ids)
    enable(tmp_path, form, dense_layers=(0, 1))
    assert_close(run(model, "tessera", ids), expected)
    enable(tmp_path, form, dense_threshold=160)
    assert_close(run(model, "tessera", ids), expected)
    enable(tmp_path, form, decode="dense", budget=160)
    with hf.collect() as stats:
        in_steps(model, "tessera", ids, [159, 1], new_cache(model, "dynamic"))
    assert stats.decode.keys_read == stats.decode.keys_dense


@FORMS
def test_bf16(tmp_path, form):
    model, ids = build(dtype=torch.bfloat16), tokens(160)
    enable(tmp_path, form, budget=160)
    got, expected = run(model, "tessera", ids).float(), run(model, "eager", ids).float()
    assert (got - expected).abs().mean() < 0.05 * expected.abs().mean()


# ---- Options -----------------------------------------------------------------------------------------------------------


def test_options_change_and_go_back(tmp_path):
    model, ids = build(), tokens(160)
    dense = run(model, "eager", ids)
    enable(tmp_path, "msa")
    sparse = run(model, "tessera", ids)
    with hf.options(selector="dense", budget=64):
        assert_close(run(model, "tessera", ids), dense)
    assert torch.equal(run(model, "tessera", ids), sparse)
    with hf.options(budget=160):
        assert_close(run(model, "tessera", ids), dense)
    with hf.options(indexer=indexer_file(tmp_path, shape_of("qsa"))) as options:
        assert options.indexer.shape.form == "qsa"
    assert torch.equal(run(model, "tessera", ids), sparse)
    hf.disable()
    assert torch.equal(run(model, "eager", ids), dense)


def test_bad_options(tmp_path):
    file = indexer_file(tmp_path, shape_of("msa"))
    for options, message in {
        (("block_size", 32),): "block_size is 32; expected 64: it does not apply",
        (("stride", 4),): "stride is 4; expected 8",
        (("budget", 12),): "budget is 12; expected a multiple of the indexer's block size, 8, of at least 16",
        (("budget", 8),): "of at least 16",
        (("selector", "moba"),): "selector is 'moba' and indexer",
    }.items():
        with pytest.raises(ValueError, match=message):
            hf.enable(indexer=file, **dict(options))
    with pytest.raises(ValueError, match="selector is 'indexer' and indexer None"):
        hf.enable(selector="indexer")
    with pytest.raises(
        ValueError, match="init_blocks is 2; expected 1: it does not apply to selection by an indexer in QSA"
    ):
        hf.enable(indexer=indexer_file(tmp_path, shape_of("qsa")), init_blocks=2)
    with pytest.raises(NotImplementedError, match="models of type 'gpt2'; expected one of llama, mistral"):
        hf.enable(indexer=indexer_file(tmp_path, shape_of("msa", "gpt2")))


def test_bad_files(tmp_path):
    from safetensors.torch import save_file

    with pytest.raises(OSError, match=r"none\.safetensors"):
        hf.enable(indexer=tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("not a tensor in it, but long enough for a header")
    with pytest.raises(ValueError, match=r"indexer .*text\.safetensors"):
        hf.enable(indexer=tmp_path / "text.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"has the format None; expected 'tessera-indexer-1'"):
        hf.enable(indexer=tmp_path / "other.safetensors")
    metadata = {"format": "tessera-indexer-1", "form": "msa", "heads": "x"}
    save_file({"a": torch.zeros(2)}, tmp_path / "lacking.safetensors", metadata=metadata)
    with pytest.raises(ValueError, match="its metadata lacks a valid"):
        hf.enable(indexer=tmp_path / "lacking.safetensors")
    for changes, message in (
        ({"dim": 7}, "expected numbers of at least 1, and an even dim"),
        ({"rope_theta": 0.0}, "rope_theta 0.0"),
        ({"layers": 3}, "has 4 tensors for 3 layers"),
    ):
        odd = Indexer(shape_of("msa"))
        odd.shape = shape_of("msa", **changes)
        odd.save(tmp_path / "odd.safetensors", {})
        with pytest.raises(ValueError, match=message):
            hf.enable(indexer=tmp_path / "odd.safetensors")
    odd = Indexer(shape_of("msa"))
    odd.shape = shape_of("msa", hidden_size=10**9)  # refused before it is allocated
    odd.save(tmp_path / "odd.safetensors", {})
    with pytest.raises(ValueError, match="size mismatch"):
        hf.enable(indexer=tmp_path / "odd.safetensors")
    good = Indexer(shape_of("msa"))
    del good.branches[1].q_proj.weight
    good.save(tmp_path / "short.safetensors", {})
    with pytest.raises(ValueError, match=r"short\.safetensors has 3 tensors for 2 layers"):
        hf.enable(indexer=tmp_path / "short.safetensors")


def test_a_model_that_the_indexer_does_not_fit(tmp_path):
    hf.enable(indexer=indexer_file(tmp_path, shape_of("msa", heads=4)), budget=32)
    with pytest.raises(ValueError, match="num_key_value_heads of the model is 2; expected 4"):
        run(build(), "tessera", tokens(64))
    with pytest.raises(NotImplementedError, match="Qwen2Attention selects by no indexer"):
        run(build("qwen2"), "tessera", tokens(64))


def test_a_cache_that_another_attention_filled(tmp_path):
    model, ids = build(), tokens(100)
    enable(tmp_path, "msa")
    cache = new_cache(model, "dynamic")
    in_steps(model, "eager", ids[:, :90], [90], cache)
    with pytest.raises(ValueError, match="the cache holds 90 tokens, 0 of which the indexer has seen"):
        in_steps(model, "tessera", ids[:, 90:], [10], cache)


def test_gradients_are_refused(tmp_path):
    enable(tmp_path, "msa")
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="gradients are not supported"):
        run(build(), "tessera", tokens(100))
