"""The model of several ranks: where it must agree with one, and which way its figures go."""

from __future__ import annotations

import itertools

import pytest
from commands import bench, run
from tessera.bench.dist_model import RANKS, TOKENS, Model

MODEL = Model(
    row=8e-4, empty=1e-5, merged=2e-6, key=1e-6, out_bytes=16384, lse_bytes=256, kv_bytes=2048, packed_bytes=4096,
    bandwidth=1e10, latency=5e-6,
)  # fmt: skip


def test_one_rank_is_one_process():
    seconds, memory = MODEL.q_parallel(65536, 1)
    assert seconds == pytest.approx(65536 * (8e-4 + 1e-6))
    assert memory == 65536 * 6144


def test_ranks_share_time_and_context_parallel_ranks_share_memory():
    for tokens in TOKENS:
        for few, many in itertools.pairwise(RANKS):
            assert MODEL.q_parallel(tokens, many)[0] < MODEL.q_parallel(tokens, few)[0]
            assert MODEL.q_parallel(tokens, many)[1] == MODEL.q_parallel(tokens, few)[1]
            assert MODEL.context_parallel(tokens, many)[1] < MODEL.context_parallel(tokens, few)[1]


def test_a_slow_network_costs():
    slow = Model(**{**vars(MODEL), "bandwidth": 1e8})
    assert slow.context_parallel(65536, 8)[0] > MODEL.context_parallel(65536, 8)[0] + 65536 * 33024 * 7 / 8 / 1e8 / 2


def test_the_case_reports_every_number_of_ranks():
    line = bench("dist-model")
    assert [row["ranks"] for row in line["model"][: len(RANKS)]] == list(RANKS)
    assert line["model"][0]["tokens"] == 256
    assert line["model"][-1]["tokens"] == 2**24
    assert "context-parallel" in run("bench", "dist-model", "--seq", "256", "--rows", "128", "--heads-q", "4", "--heads-kv",
                                     "2", "--dim", "32", "--runs", "1", "--no-peers").stdout  # fmt: skip
