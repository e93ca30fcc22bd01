"""`tessera plot`: what it draws of saved lines, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tessera
from commands import NO_CEILING, SMALL, bench, lines, run
from tessera.bench.lines import at_several_lengths, common, differing, fields, length, thousands

plt = pytest.importorskip("matplotlib")

from tessera.plot import maps, scaling, shares  # noqa: E402
from tessera.plot.style import spread  # noqa: E402


def line(seq=8192, threads=2, ms=10.0, share=0.8, **more):
    shape = {"B": 1, "Sq": seq, "Sk": seq, "Hq": 64, "Hkv": 4, "D": 128, "block": 128, "block_q": 128, "K": 16}
    rates = {"ms": ms, "gflop": 1.0, "gflops": 80.0, "gbps": 1.0}
    ceiling = {"kind": "f32_fma", "value": 80 / share, "share": share}
    peers = {"torch_sdpa_dense": {"ms": 3 * ms, "speedup": 3.0}, "late": {"ms": None, "speedup": None, "skipped": "it"}}
    told = {"case": "msa-prefill", "shape": shape, "dtype": "bf16", "threads": threads, "variant": "avx2"}
    return told | rates | {"ceiling": ceiling, "peers": peers} | more


def saved(tmp_path, *objects):
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(one) + "\n\n" for one in objects))
    return str(file)


def selection(heads=2, rows=8, width=3):
    q, k = (np.random.default_rng(0).standard_normal((1, 16 * rows, heads, 8), np.float32) for _ in range(2))
    return {"lists": tessera.mass_select(q, k, topk=width, block_size=16, block_q=16)[0].tolist()} | {
        "block_size": 16,
        "block_q": 16,
    }


def texts(figure):
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    return found + [axes.get_title(loc=place) for axes in figure.axes for place in ("left", "center")]


# ---- What is said of a line -------------------------------------------------------------------------------------------


def test_fields_tell_measurements_apart():
    one, other = line(threads=1), line(seq=1024, dtype="f32")
    shared = common([one, other])
    assert shared == {"heads": "64/4 heads", "B": "batch 1", "D": "D 128", "block": "blocks of 128", "K": "top 16",
                      "variant": "avx2"}  # fmt: skip
    assert differing(one, shared) == "bf16, 1 thread"
    assert differing(other, shared) == "f32, 2 threads"
    assert (length(one), length(other)) == (8192, 1024)
    one["shape"]["Sq"] = 1
    assert fields(one)["Sq"] == "1 row"


@pytest.mark.parametrize("name", SMALL)
def test_lines_of_every_case_have_fields(name):
    told = bench(name, "--no-peers", "--threads", "1")
    assert "1 thread" in fields(told).values()
    assert length(told) > 0
    assert (told["ceiling"] is None) == (name in NO_CEILING)


def test_thousands():
    assert [thousands(n) for n in (0, 1000, 1024, 8192, 1 << 20, (1 << 20) + 1024)] == [
        "0", "1,000", "1K", "8K", "1M", "1025K",
    ]  # fmt: skip


def test_only_what_has_several_lengths_scales():
    scaled = [line(seq=1024), line(seq=2048)]
    assert at_several_lengths([*scaled, line(seq=1024, threads=1)]) == scaled


def test_spread_keeps_order_and_distance():
    assert spread([0.1, 0.5], 0.1) == [0.1, 0.5]
    np.testing.assert_allclose(spread([0.5, 0.5, 0.5], 0.1), [0.4, 0.5, 0.6])
    placed = spread(sorted(np.random.default_rng(0).random(12).tolist()), 0.07)
    assert np.diff(placed).min() > 0.07 - 1e-9


# ---- Pictures ------------------------------------------------------------------------------------------------------------


def test_scaling_shows_times_peers_and_ceilings():
    figure = scaling.figure([line(seq=s, threads=t, ms=s / 100) for s in (1024, 2048, 4096) for t in (1, 2)])
    time, speed = figure.axes
    assert len(time.lines) == 4  # two of the case, two of the peer that ran
    assert len(speed.lines) == 4  # two of the case, each with its ceiling
    assert time.get_yscale() == "log"
    assert [tick.get_text() for tick in time.get_xticklabels()] == ["1K", "2K", "4K"]
    assert {"tessera, 1 thread", "torch sdpa dense, 2 threads", "msa-prefill: time of a call"} <= set(texts(figure))


def test_memory_bound_cases_are_drawn_in_gigabytes():
    gather = {"kind": "gather", "value": 10.0, "share": 0.5}
    figure = scaling.figure([line(seq=s, ceiling=gather, gbps=5.0) for s in (1024, 2048)])
    assert "Speed, GB/s" in texts(figure)
    assert figure.axes[1].lines[0].get_ydata().tolist() == [5.0, 5.0]


def test_durations_have_units():
    assert [scaling.duration(ms) for ms in (2000, 5, 0.002, 1e-6)] == ["2 s", "5 ms", "2 µs", "1 ns"]


def test_shares_are_bars():
    figure = shares.figure([line(share=0.8), line(share=1.3, threads=1), line(share=0.05, case="merge")])
    (axes,) = figure.axes
    assert sorted(bar.get_width() for bar in axes.patches) == [0.05, 0.8, 1.17]
    assert {"0.80", "1.30", "0.05", "merge", "of 100 GFLOP/s"} <= set(texts(figure))


def test_maps_show_what_is_selected_and_visible():
    lists = np.array([[0, -1], [1, -1], [0, 2]], np.int32)
    image = maps.pixels(lists, 3, 16, 16)
    orange, grey, none = maps.SELECTED, maps.VISIBLE, (0, 0, 0, 0)
    want = [[orange, none, none], [grey, orange, none], [orange, grey, orange]]
    np.testing.assert_allclose(image, want)


def test_maps_of_the_last_rows_of_a_context():
    image = maps.pixels(np.array([[3], [3]], np.int32), 4, 16, 8)
    np.testing.assert_allclose(image, [[maps.VISIBLE] * 3 + [maps.SELECTED]] * 2)


def test_maps_of_lists_that_share_a_row():
    lists = np.array([[0, -1], [0, 1], [0, 1], [0, 1], [2, 0]], np.int32)
    image = maps.pixels(lists, 3, 4, 1, together=4)
    orange, grey = np.array(maps.SELECTED), np.array(maps.VISIBLE)
    np.testing.assert_allclose(image[0], [orange, 0.75 * orange + 0.25 * grey, [0, 0, 0, 0]])
    np.testing.assert_allclose(image[1], [orange, grey, orange])  # the last row has one list


# ---- The command ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_kind_follows_the_file(tmp_path, suffix):
    out = tmp_path / f"picture.{suffix}"
    for kind, objects in {
        "scaling": [line(seq=1024), line(seq=2048)],
        "shares": [line(), line(threads=1)],
        "maps": [{"selection": selection()}, {"selection": selection(5), "selector": "mass"}],
    }.items():
        (summary,) = lines("plot", saved(tmp_path, *objects), "-o", str(out))
        cases = [] if kind == "maps" else ["msa-prefill"]
        assert summary == {"file": str(out), "kind": kind, "cases": cases, "lines": 2}
        assert out.stat().st_size > 1000
        out.unlink()


def test_cases_can_be_chosen(tmp_path):
    file = saved(tmp_path, line(), line(case="merge"))
    out = str(tmp_path / "picture.svg")
    assert lines("plot", file, "-o", out, "--case", "merge")[0]["cases"] == ["merge"]
    assert "no measurement of other" in run("plot", file, "-o", out, "--case", "other", status=2).stderr


def test_standard_input(tmp_path):
    out = tmp_path / "picture.svg"
    text = run("plot", "-", "-o", str(out), stdin=json.dumps(line())).stdout
    assert text == f"{out}: shares of msa-prefill, 1 line\n"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", [], "is empty"),
        ("[]", [], "line 1"),
        ("text", [], "line 1"),
        ('{"selector": "mass"}', [], "a budget that is smaller than its text"),
        ('{"selection": {"lists": [[0]]}}', [], "a selection has lists"),
        ('{"selection": {"lists": [], "block_size": 4, "block_q": 4}}', [], "a selection has lists"),
        ('{"selection": {"lists": [[[0], [1, 2]]], "block_size": 4, "block_q": 4}}', [], "a selection has lists"),
        (json.dumps(line()), ["--kind", "scaling"], "nothing for --kind scaling"),
        (json.dumps(line()), ["--kind", "maps"], "nothing for --kind maps"),
        (json.dumps(line()), ["-o", "picture.gif"], "ends neither in"),
        (json.dumps(line()), ["-o", "/no/such/folder/x.png"], "is not a directory"),
    ],
)
def test_refusals(tmp_path, content, options, message):
    file = tmp_path / "file"
    file.write_text(content)
    assert message in run("plot", str(file), "-o", str(tmp_path / "x.png"), *options, status=2).stderr


def test_missing_matplotlib_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    args = saved(tmp_path, line()), "-o", str(tmp_path / "x.png")
    assert "pip install matplotlib" in run("plot", *args, status=2).stderr
