"""Jobs of several ranks over each engine: the examples, which check themselves, and what happens when a rank fails."""

from __future__ import annotations

import jobs
import numpy as np
import pytest
import tessera
from tessera.distributed import gather_pages, own_pages, own_slots, partition, q_parallel

SMALL = ["--seq", "300", "--heads-q", "4", "--dim", "32", "--topk", "3", "--runs", "1"]
RANKS = {"mpi": 3, "torch": 2}


@pytest.mark.parametrize("engine", jobs.engines())
@pytest.mark.parametrize("name", ["q_parallel", "context_parallel"])
def test_an_example_succeeds(engine, name):
    status, text = jobs.run(engine, RANKS[engine], jobs.EXAMPLES / f"{name}.py", "--engine", engine, *SMALL)
    assert status == 0, text
    assert "FAILED" not in text
    assert f"{RANKS[engine]} ranks" in text


# A rank raises before its call; one has other arguments; one is killed.
FAULTS = """
import os, sys
import numpy as np
sys.path.insert(0, sys.argv[2])
from common import join
from tessera.distributed import q_parallel_prefill

group, rank, size = join(sys.argv[1])
q = np.ones((1, 64, 2, 8), np.float32)
lists = np.zeros((1, 4, 1), np.int32)

def attempt(q, **options):
    try:
        q_parallel_prefill(q, q, q, lists, block_size=16, group=group, **options)
        return "nothing"
    except Exception as error:
        return f"{type(error).__name__}: {error}"

print(attempt(q.astype(np.float64) if rank == 1 else q), flush=True)
print(attempt(q, return_lse=rank == 0), flush=True)
print(attempt(q), flush=True)
if rank == 1:
    os.kill(os.getpid(), 9)
print(attempt(q), flush=True)
"""


@pytest.mark.parametrize("engine", jobs.engines())
def test_what_fails_on_one_rank_fails_on_all(engine, tmp_path):
    script = tmp_path / "faults.py"
    script.write_text(FAULTS)
    status, text = jobs.run(engine, 2, script, engine, jobs.EXAMPLES, timeout=120)
    assert text.count("TypeError: block_sparse_gqa_prefill: rank 1: q is float64; expected") == 2, text
    assert text.count("ValueError: block_sparse_gqa_prefill: rank 1 is called with") == 2, text
    assert text.count("nothing") == 2, text
    assert status != 0
    # A rank that is killed is the engine's affair: mpirun ends the others, gloo's calls raise.
    assert ("signal 9" if engine == "mpi" else "RuntimeError: ") in text, text


def test_plans_need_no_group():
    assert partition([1, 2, 3, 3, 2, 1], 3) == [0, 2, 4, 6]
    used = np.array([40, 9], np.int32)
    tables = [own_pages(used, 3, page_size=16, rank=r, size=2) for r in range(2)]
    assert [(table.tolist(), count) for table, count in tables] == [
        ([[0, -1, 1], [-1, -1, -1]], 2),
        ([[-1, 0, -1], [1, -1, -1]], 2),
    ]
    with pytest.raises(ValueError, match="ownership is 'random'"):
        own_pages(used, 3, page_size=16, rank=0, size=2, ownership="random")


def test_new_tokens_go_to_their_owner():
    table = np.array([[0, -1], [-1, 1]], np.int32)
    slots = own_slots(table, np.array([0, 0, 1]), np.array([3, 16, 17]), page_size=16)
    assert slots.tolist() == [3, -1, 17]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_pages_of_a_rank(kind):
    tokens = np.arange(2 * 40 * 3 * 8, dtype=np.float32).reshape(2, 40, 3, 8)
    if kind == "torch":
        import torch

        tokens = torch.from_numpy(tokens)
    pages = gather_pages(tokens, np.array([[-1, 0, -1], [-1, -1, 1]], np.int32), page_size=16)
    assert tuple(pages.shape) == (2, 3, 16, 8)
    assert (pages[0, 1, 5] == tokens[0, 21, 1]).all()
    assert (pages[1, 2, 7] == tokens[1, 39, 2]).all()
    assert (pages[1, :, 8:] == 0).all()


def test_no_group():
    with pytest.raises(ValueError, match="group is None"):
        q_parallel(tessera.block_sparse_gqa_prefill)
    with pytest.raises(TypeError, match="expected a communicator of mpi4py or a process group"):
        q_parallel(tessera.block_sparse_gqa_prefill, group=3)
