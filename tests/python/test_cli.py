"""The command `tessera`: what it prints, on small calls, and its exit status."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import tessera
from commands import MODEL, NO_CEILING, QSA, SMALL, bench, lines, run
from tessera.bench.case import Peer, all_cases
from tessera.bench.command import describe
from tessera.bench.rows import row_lists
from tessera.check import command as check_command
from tessera.check.operators import OPERATORS, Case
from tessera.cli import COMMANDS

BEST = tessera.info()["variant"]
KEYS = {
    "case",
    "shape",
    "dtype",
    "threads",
    "variant",
    "ms",
    "runs",
    "gflop",
    "gflops",
    "gbps",
    "ceiling",
    "peers",
    "check",
}


def test_help_names_every_command():
    text = run("--help").stdout
    for name in COMMANDS:
        assert name in text
        assert "--json" in run(name, "--help").stdout


def test_unknown_command_is_wrong_usage():
    run("nothing", status=2)


@pytest.mark.parametrize("value", ["avx9", "scalar"])
def test_info_says_when_the_environment_makes_calls_fail(value, tmp_path):
    command = [sys.executable, "-m", "tessera", "info"]
    done = subprocess.run(
        command, env=os.environ | {"TESSERA_MAX_ISA": value}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert ('calls fail       TESSERA_MAX_ISA is "avx9"; expected' in done.stdout) == (value == "avx9")


def test_info():
    text = run("info").stdout
    assert tessera.__version__ in text
    assert BEST in text
    assert lines("info") == [json.loads(json.dumps(tessera.info()))]


# ---- check -------------------------------------------------------------------------------------------------------------


def test_check_lists_each_operator_and_dtype():
    results = lines("check", "--variant", BEST)
    taken = {(r["operator"], r["dtype"]) for r in results}
    assert taken >= {(operator, "bf16") for operator in OPERATORS}
    assert all(r["ok"] and r["max_err_over_bound"] < 1 and r["cases"] for r in results), results


def test_check_prints_a_table():
    text = run("check", "--operator", "cp_merge", "--dtype", "f16").stdout
    assert "within their bounds" in text
    for name in check_command.available_variants():
        assert name in text


def test_check_notices_a_wrong_result(monkeypatch):
    monkeypatch.setitem(
        OPERATORS, "cp_merge", lambda dtype: [Case("wrong", lambda: 2.0, lambda: 1.0, lambda a, b: a / b)]
    )
    (result, *_) = lines("check", "--operator", "cp_merge", "--dtype", "f32", status=1)
    assert not result["ok"]
    assert result["max_err_over_bound"] == 2
    assert "FAILED" in run("check", "--operator", "cp_merge", status=1).stdout


def test_check_reports_an_error_as_a_failure(monkeypatch):
    def fail():
        raise ValueError("out of order")

    monkeypatch.setitem(OPERATORS, "cp_merge", lambda dtype: [Case("broken", fail, lambda: 1.0, lambda a, b: 0.0)])
    (result, *_) = lines("check", "--operator", "cp_merge", status=1)
    assert result["max_err_over_bound"] is None
    assert "out of order" in result["worst_case"]


@pytest.mark.parametrize("args", [["--variant", "none"], ["--operator", "none"], ["--dtype", "f64"]])
def test_check_refuses(args):
    run("check", *args, status=2)


# ---- bench -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_bench_line(name):
    line = bench(name, "--no-peers", "--threads", "1")
    assert line.keys() >= KEYS
    assert line["case"] == name
    assert line["dtype"] == ("f32" if name == "topk-blocks" else "bf16")
    assert line["threads"] == 1
    assert line["ms"] > 0
    assert line["runs"] == 2
    assert line["peers"] == {}
    assert 0 <= line["check"]["max_err_over_bound"] <= 1
    if name in NO_CEILING:
        assert line["ceiling"] is None
    else:
        assert 0 < line["ceiling"]["share"] < 1.5
        assert line["ceiling"]["value"] > 0


def test_every_case_is_tested():
    assert set(SMALL) == set(all_cases())


def test_bench_counts_only_what_is_visible():
    line = bench("msa-prefill", "--no-peers")
    # Blocks 0, 1 and 2 see 1, 2 and 3 blocks, the later ones 3 of them; each row sees half of its own block.
    own = 8 * (32 * 33) // 2
    earlier = 32 * 32 * (0 + 1 + 6 * 2)
    assert line["gflop"] == pytest.approx(4 * 32 * 4 * (own + earlier) / 1e9, rel=1e-3)
    assert line["shape"] == {
        "B": 1, "Sq": 256, "Sk": 256, "Hq": 4, "Hkv": 2, "D": 32, "block": 32, "block_q": 32, "K": 3
    }  # fmt: skip
    assert line["workspace_mib"] > 0
    assert line["first_ms"] > 0


def test_bench_takes_a_part_of_the_rows():
    assert bench("msa-prefill", "--no-peers", "--rows", "50", "--dtype", "f32")["shape"]["Sq"] == 50


def test_bench_of_lists_per_token():
    line = bench("msa-prefill-token", "--no-peers", "--batch", "2", "--overlap", "0.5")
    own = 2 * 8 * (32 * 33) // 2
    earlier = 2 * 32 * 32 * (0 + 1 + 6 * 2)
    assert line["gflop"] == pytest.approx(4 * 32 * 4 * (own + earlier) / 1e9, rel=1e-3)
    assert line["shape"]["overlap"] == 0.5
    assert line["ceiling"]["kind"] in ("f32_fma", "bf16_dot")


@pytest.mark.parametrize(
    ("page", "layout"),
    [("32", "rowmajor"), ("8", "rowmajor"), ("48", "rowmajor"), ("128", "rowmajor"), ("32", "packed")],
)
@pytest.mark.parametrize("rows", ["1", "3"])
def test_bench_of_decode(page, layout, rows):
    line = bench(
        "msa-decode", "--no-peers", "--page-size", page, "--layout", layout, "--rows", rows, "--seq", "250"
    )  # fmt: skip
    assert line["shape"]["page"] == int(page)
    assert line["shape"]["layout"] == layout
    assert line["ceiling"]["kind"] == "gather"
    assert line["arithmetic"]["kind"] in ("f32_fma", "bf16_dot")
    assert line["arithmetic"]["value"] > 0
    assert line["check"]["max_err_over_bound"] <= 1
    # Two whole blocks, and what the last token sees of its own.
    if rows == "1":
        assert line["gflop"] == pytest.approx(3 * 4 * (64 + 26) * 4 * 32 / 1e9, rel=1e-3)


def test_neighbouring_lists_share_what_overlap_says():
    positions = np.arange(1000, 1128)
    for overlap in (0, 0.5, 0.9, 1):
        lists = row_lists(np.random.default_rng(0), positions, 2, 16, 10, overlap)
        assert (lists[..., -1] == positions // 16).all()
        assert (np.diff(lists, axis=-1) > 0).all()
        kept = [len(np.intersect1d(a, b)) for a, b in zip(lists[0], lists[0, 1:], strict=False)]
        same_block = np.diff(positions // 16) == 0
        assert np.mean(np.array(kept)[same_block]) == pytest.approx(max(10 * overlap, 1), abs=0.1)
    short = row_lists(np.random.default_rng(0), np.array([0, 40]), 1, 16, 4, 0.9)
    assert short.tolist() == [[[0, -1, -1, -1], [0, 1, 2, -1]]]


def test_bench_counts_only_rows_that_need_scores():
    line = bench("msa-select", "--no-peers", "--keys", "200", "--rows", "150")
    # Rows up to position 95 see three blocks of 32 or fewer, and take them all.
    assert line["gflop"] == pytest.approx(2 * 32 * 3 * sum(range(97, 201)) / 1e9, rel=1e-3)
    assert line["shape"] == {"B": 1, "Sq": 150, "Sk": 200, "Hi": 3, "D": 32, "block": 32, "K": 3}


def test_a_peer_that_would_take_too_long_may_be_fitted(monkeypatch):
    peer = Peer(lambda tokens: lambda: time.sleep(0.01), lambda tokens: (tokens or 1000) ** 2, probe=10, fitted=True)
    case = all_cases()["call-overhead"]
    monkeypatch.setattr(case, "peers", lambda _: {"slow": peer})
    line = bench("call-overhead", "--peer-seconds", "2")
    assert line["peers"]["slow"]["fitted_from_tokens"] == 10
    assert line["peers"]["slow"]["ms"] >= 10 * 100**2
    assert "(from 10 tokens)" in describe(line)
    peer.fitted = False
    assert "a run takes about" in bench("call-overhead", "--peer-seconds", "2")["peers"]["slow"]["skipped"]


def test_bench_times_peers():
    pytest.importorskip("torch")
    assert bench("msa-select")["peers"]["torch_dense_scores"]["ms"] > 0
    peers = bench("msa-prefill", "--peer-seconds", "1e-5")["peers"]
    assert set(peers) == {"torch_sdpa_dense", "torch_flex_block_mask", "tessera_dense"}
    assert all(peer["ms"] is None and "--peer-seconds" in peer["skipped"] for peer in peers.values())
    peers = bench("msa-decode")["peers"] | bench("merge")["peers"]
    assert set(peers) == {"torch_gather_sdpa", "torch_sdpa_dense", "tessera_dense", "torch_merge"}
    for peer in peers.values():
        assert peer["ms"] > 0
        assert peer["speedup"] > 0


@pytest.mark.parametrize("sizes", [{}, {"seq": 250, "rows": 3, "page_size": 8}])
def test_the_peer_that_gathers_gives_the_same(sizes):
    pytest.importorskip("torch")
    from tessera.bench.peers import decode_peers

    small = {"seq": 256, "rows": 1, "batch": 3, "heads_q": 4, "heads_kv": 2, "dim": 32, "block": 32, "topk": 3}
    case = all_cases()["msa-decode"](**all_cases()["msa-decode"].defaults | small | {"dtype": "f32"} | sizes)
    case.lists, case.turn = case.lists[:1], 0
    want = case.run()
    got = decode_peers(case)["torch_gather_sdpa"].make(None)()
    np.testing.assert_allclose(got.reshape(want.shape).numpy(), want, rtol=1e-4, atol=1e-5)


def test_bench_says_it_in_words():
    text = run("bench", "msa-prefill", *SMALL["msa-prefill"], "--runs", "1", "--no-peers").stdout
    assert "of the f32_fma ceiling" in text or "of the bf16_dot ceiling" in text
    assert "of its bound" in text


def test_bench_fails_on_a_wrong_result(monkeypatch):
    monkeypatch.setattr(all_cases()["call-overhead"], "check", lambda _: 1.5)
    run("bench", "call-overhead", "--runs", "1", "--no-peers", status=1)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "Missing argument"),
        (["nothing"], "there is no case nothing"),
        (["merge", "--seq", "64"], "no option --seq"),
        (["call-overhead", "merge", "--rows", "64"], "no option --rows"),
        (["msa-prefill", "--overlap", "0.5"], "no option --overlap"),
        (["msa-prefill-token", "--overlap", "1.5"], "--overlap"),
        (["msa-prefill-token", "--block-q", "4"], "no option --block-q"),
        (["msa-decode", *MODEL, "--layout", "packed"], "--layout packed is measured where"),
        (["msa-decode", *MODEL, "--dim", "8", "--page-size", "1"], "pieces of 16 bytes"),
        (["msa-decode", "--seq", "10000000000"], "--batch or --seq"),
        (["msa-prefill", "--heads-q", "3", "--heads-kv", "2"], "multiples of --heads-kv"),
        (["msa-prefill", "--seq", "64", "--rows", "65"], "up to --seq"),
        (["msa-select", "--seq", "64", "--keys", "50", "--rows", "51"], "up to the keys, 50"),
        (["qsa-score", "--seq", "3"], "--block is 4"),
        (["qsa-attention", "--seq", "3"], "--block is 4"),
        (["qsa-decode", *QSA, "--dim", "8", "--page-size", "1"], "pieces of 32 bytes"),
        (["qsa-decode", "--seq", "10000000000"], "--batch or --seq"),
        (["qsa-score", "--seq", "1000000000000"], "--batch or --seq"),
        (["qsa-prefill", "--decode"], "no option --decode"),
        (["merge", "--variant", "none"], "there is no variant none"),
        (["merge", "--dtype", "f64"], "--dtype"),
    ],
)
def test_bench_refuses(args, text):
    assert text in run("bench", *args, status=2).stderr


# ---- bench --compare ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    return {name: bench(name, "--no-peers", "--threads", "1") for name in ("merge", "call-overhead")}


def compared(tmp_path, name, *old, status=0, options=()):
    file = tmp_path / "old.json"
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    fixed = (*SMALL[name], "--runs", "1", "--no-peers", "--threads", "1", "--compare", str(file))
    return lines("bench", name, *fixed, *options, status=status)[0]["compare"]


def test_compare_puts_times_into_relation_to_the_ceilings(measured, tmp_path):
    old = measured["merge"]
    found = compared(tmp_path, "merge", old | {"ms": 1e-9, "ceiling": old["ceiling"] | {"share": 1e-9}})
    assert found["ratio"] > 1e3
    assert found["adjusted"] < 1
    assert not found["slower"]
    assert (found["ms"], found["margin"]) == (1e-9, 0.1)
    found = compared(tmp_path, "merge", old | {"ceiling": old["ceiling"] | {"share": 1e9}}, status=1)
    assert found["slower"]


def test_compare_takes_times_where_no_ceiling_is(measured, tmp_path):
    old = measured["call-overhead"]
    assert compared(tmp_path, "call-overhead", old | {"ms": 1e9})["ratio"] < 1
    found = compared(tmp_path, "call-overhead", old | {"ms": old["ms"] / 1e4}, status=1)
    assert found["adjusted"] is None
    assert found["slower"]
    assert not compared(tmp_path, "call-overhead", old | {"ms": old["ms"] / 1e3}, options=("--margin", "1e6"))["slower"]


def test_compare_prefers_the_same_variant_and_names_another_cpu(measured, tmp_path):
    old = measured["call-overhead"]
    other = old | {"variant": "other", "ms": 1e9}
    assert compared(tmp_path, "call-overhead", old | {"ms": 1e8}, other)["variant"] == old["variant"]
    assert compared(tmp_path, "call-overhead", other)["variant"] == "other"
    assert "cpu" not in compared(tmp_path, "call-overhead", other)
    found = compared(tmp_path, "call-overhead", other | {"machine": {"cpu": "Z80"}})
    assert found["cpu"] == "Z80"
    text = describe(old | {"compare": found})
    assert "on another CPU, Z80" in text
    assert "not slower" in text


def test_compare_refuses(measured, tmp_path):
    file = tmp_path / "old.json"
    file.write_text(json.dumps(measured["merge"]) + "\n")
    options = ("--no-peers", "--threads", "1", "--compare", str(file))
    assert "has no call-overhead with" in run("bench", "call-overhead", *options, status=2).stderr
    file.write_text('{"selector": "mass"}\n')
    assert "not a line of tessera bench" in run("bench", "merge", *options, status=2).stderr
    run("bench", "merge", "--compare", str(tmp_path / "none"), status=2)
