"""The training of indexers in examples/train_indexer, on a tiny model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

import tessera  # noqa: E402
import tessera.integrations.transformers as hf  # noqa: E402
from language_models import one_thread  # noqa: E402, F401
from tessera.integrations.transformers._indexer import Indexer, Rotary  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_indexer"
TOKENS, HIDDEN = 256, 64


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLE))
    import mass
    import text
    import train

    yield {"mass": mass, "text": text, "train": train}
    sys.path.remove(str(EXAMPLE))
    for name in ("mass", "text", "train"):
        del sys.modules[name]


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(8)  # attention that prefers some keys to others
    hf.enable(selector="dense")
    model.set_attn_implementation("tessera")
    yield model
    hf.disable()


def ids(seed: int) -> torch.Tensor:
    return torch.randint(3, 97, (1, TOKENS), generator=torch.Generator().manual_seed(seed))


def test_mass_is_that_of_the_softmax(example):
    torch.manual_seed(0)
    q, k, rows = torch.randn(4, 3, 16), torch.randn(2, 64, 16), torch.tensor([0, 17, 63])
    scores = torch.einsum("hrd,hsd->hrs", q, k.repeat_interleave(2, dim=0)) * 0.25
    expected = scores.masked_fill(torch.arange(64) > rows[:, None], -torch.inf).softmax(-1)
    expected = expected.view(2, 2, 3, 16, 4).mean(1).sum(-1)
    got = example["mass"].block_mass(q, k, rows, 4, 0.25)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(example["mass"].coarser(got, 16).squeeze(-1), torch.ones(2, 3))


@pytest.mark.parametrize("form", ["msa", "qsa"])
def test_the_scores_that_are_trained_are_those_that_select(example, model, form):
    train = example["train"]
    shape = {s.form: s for s in train.shapes(model.config)}[form]
    torch.manual_seed(3)
    branch = Indexer(shape).branches[0].requires_grad_(False)
    hidden, rows = torch.randn(TOKENS, HIDDEN), torch.arange(TOKENS)
    rotary = Rotary(rows, shape, torch.float32)
    q, k = branch.queries(hidden[None], rotary), branch.keys(hidden[None], rotary)
    if form == "msa":
        trained = train.msa_scores(branch, hidden, rows)
        used = tessera.msa_block_scores(q, k[:, :, None], block_size=shape.block_size)[0] * shape.dim**-0.5
    else:
        trained = train.qsa_scores(branch, hidden, rows)
        keys = tessera.qsa_compress_keys(
            k, branch.k_norm.weight, block_size=4, eps=shape.eps, rotary_dim=shape.dim, rope_theta=shape.rope_theta
        )
        used = tessera.qsa_indexer_mqa_score(q, keys, block_size=4)[0]
    visible = torch.isfinite(used)
    assert visible.any()
    torch.testing.assert_close(trained.broadcast_to(used.shape)[visible], used[visible], rtol=1e-3, atol=1e-4)


def test_losses_fall_and_a_stopped_run_goes_on(example, model, tmp_path):
    whole, stopped = (example["train"].Training(model, seed=1) for _ in range(2))
    losses = [whole.step(ids(window % 4), 6e-3) for window in range(16)]
    for form in ("msa", "qsa"):
        first, last = (sum(each[form] for each in part) for part in (losses[:4], losses[-4:]))
        assert last < first
    for window in range(5):
        assert stopped.step(ids(window % 4), 6e-3) == losses[window]
    stopped.save(tmp_path / "state.pt")
    resumed = example["train"].Training(model, seed=1)
    resumed.load(tmp_path / "state.pt")
    assert [resumed.step(ids(window % 4), 6e-3) for window in range(5, 8)] == losses[5:8]


def test_windows_are_the_same_for_the_same_seed(example):
    def words(text: str):
        class Tokens:
            input_ids = [len(word) for word in text.split()]

        return Tokens

    first, second, third = (example["text"].Windows(words, seed) for seed in (0, 0, 1))
    for windows in (first, second, third):
        assert [windows.next(tokens).shape for tokens in (2048, 2048)] == [(1, 2048)] * 2
    assert first.digest == second.digest != third.digest
