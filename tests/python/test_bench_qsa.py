"""The bench cases of QSA: what they count, and that their peers compute the same."""

import numpy as np
import pytest
from commands import bench, lines
from tessera.bench.case import all_cases
from tessera.bench.command import describe


def test_bench_of_index_scores():
    line = bench("qsa-score", "--no-peers", "--batch", "2", "--page-size", "7")
    assert line["shape"] == {
        "B": 2, "Sq": 9, "Sk": 403, "N": 100, "Hi": 4, "D": 32, "block": 4, "page": 7
    }  # fmt: skip
    assert line["gflop"] == pytest.approx(2 * 9 * 100 * 4 * 2 * 32 / 1e9, rel=1e-3)
    assert line["ceiling"]["kind"] in ("f32_fma", "bf16_dot")
    assert bench("qsa-score", "--no-peers", "--keys", "30")["shape"]["N"] == 30
    assert bench("qsa-select", "--no-peers", "--topk", "100")["gflop"] == 0  # rows that list all blocks need no scores


@pytest.mark.parametrize("name", ["qsa-score", "qsa-select", "qsa-attention"])
def test_bench_of_a_decoding_row(name):
    (line,) = lines("bench", name, "--decode", "--seq", "20000", "--runs", "2", "--no-peers")
    assert line["shape"]["Sq"] == 1
    assert line["shape"]["page"] in (64, 256)
    assert line["ceiling"]["kind"] == "stream"
    assert line["check"]["max_err_over_bound"] <= 1


def test_bench_of_token_lists():
    line = bench("qsa-prefill", "--no-peers", "--batch", "2", "--overlap", "0.5", "--page-size", "24")
    tail = sum((t + 1) % 4 for t in range(209, 259))
    assert line["gflop"] == pytest.approx(2 * (50 * 64 + tail) * 6 * 4 * 32 / 1e9, rel=1e-3)
    # The first 67 rows list all of their prefix.
    line = bench("qsa-prefill", "--no-peers", "--seq", "67", "--rows", "67")
    assert line["gflop"] == pytest.approx(67 * 68 / 2 * 6 * 4 * 32 / 1e9, rel=1e-3)
    for name in ("qsa-prefill", "qsa-decode"):
        line = bench(name, "--no-peers", "--layout", "packed", "--page-size", "8")
        assert line["shape"]["layout"] == "packed"
        assert line["check"]["max_err_over_bound"] <= 1
    for page in ("8", "3", "256"):
        line = bench("qsa-decode", "--no-peers", "--page-size", page, "--rows", "2")
        assert line["ceiling"]["kind"] == "gather"
        assert line["gflop"] == pytest.approx(3 * (2 * 64 + 2 + 3) * 6 * 4 * 32 / 1e9, rel=1e-3)


def test_bench_of_qsa_attention_counts_both_parts():
    line = bench("qsa-attention", "--no-peers")
    scores = sum((t + 1) // 4 for t in range(259) if (t + 1) // 4 > 16) * 4 * 2 * 128
    pairs = sum(min((t + 1) // 4, 16) * 4 + (t + 1) % 4 for t in range(259))
    assert line["gflop"] == pytest.approx((scores + pairs * 6 * 4 * 32) / 1e9, rel=1e-3)


def test_bench_times_peers_of_qsa():
    pytest.importorskip("torch")
    peers = {}
    for name in ("qsa-score", "qsa-select", "topk-blocks", "qsa-indexer", "qsa-prefill", "qsa-decode"):
        peers |= bench(name)["peers"]
    assert set(peers) == {
        "torch_scores", "tessera_bare_scores", "torch_dense_scores", "torch_topk", "torch_modelling_code",
        "torch_gather_sdpa", "tessera_scattered_tokens",
    }  # fmt: skip
    assert all(peer["ms"] > 0 and peer["speedup"] > 0 for peer in peers.values())


def test_bench_times_the_screen_of_rows_that_are_screened():
    pytest.importorskip("torch")
    assert "tessera_int8_screen" in bench("qsa-select", "--decode", "--rows", "1")["peers"]
    assert "tessera_int8_screen" not in bench("qsa-select", "--decode")["peers"]  # of 9 rows


def test_growth_is_what_is_left_of_a_long_context(monkeypatch):
    monkeypatch.setattr("tessera.bench.qsa_layer.SHORT", 4096)
    (line,) = lines("bench", "qsa-attention", "--decode", "--seq", "20000", "--topk", "64", "--runs", "2")
    short = line["peers"]["tessera_short_context"]["ms"]
    more = (20000 - 4096) // 4 * 256 / 1e9 / line["ceiling"]["value"] * 1e3
    assert line["growth"] == pytest.approx(line["ms"] / (short + more), rel=1e-2)
    assert "of a short context's time" in describe(line)


@pytest.mark.parametrize("page_size", [None, 8])
def test_the_peers_of_qsa_give_the_same(page_size):
    torch = pytest.importorskip("torch")

    def small(name, **options):
        return all_cases()[name](**all_cases()[name].defaults | options | {"dtype": "f32"})

    sizes = {"seq": 259, "rows": 70, "batch": 2, "heads_q": 6, "dim": 32, "topk": 16, "page_size": page_size}
    case = small("qsa-prefill", **sizes)
    got = case.gather_sdpa(None)()
    np.testing.assert_allclose(got.reshape(case.q.shape).numpy(), case.run(), rtol=1e-4, atol=1e-5)

    case = small("qsa-score", **{name: sizes[name] for name in ("seq", "rows", "batch", "dim")})
    got = torch.cat(case.torch_peer(lambda scores: scores).make(None)(), 1)
    np.testing.assert_allclose(got.numpy(), case.run(), rtol=1e-4, atol=1e-5)

    case = small("qsa-indexer", seq=259, topk=16)
    case.run()
    for t, got in enumerate(case.modelling_code(None)()):
        tokens = np.pad(np.sort(got.numpy()), (0, 67 - got.numel()), constant_values=-1)
        assert case.index.tokens_share(0, t, tokens) <= 1  # blocks whose scores tie, at 0 most often, may differ
