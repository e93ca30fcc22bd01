"""Threads of Python, threads of the library, and processes."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tessera
import tessera.testing
from tensors import Problem, same_bits

prefill = tessera.block_sparse_gqa_prefill


def in_threads(functions):
    """Runs the functions at the same time; raises what the first of them raises."""
    errors = []

    def guarded(f):
        try:
            f()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_concurrent_calls_do_not_disturb_each_other():
    problems = [Problem(dtype, sq=37 + i, seed=i) for i, dtype in enumerate(["bf16", "f32", "f16", "bf16"])]
    expected = [prefill(*p.inputs, block_size=8, return_lse=True) for p in problems]

    def work(p, want):
        for _ in range(50):
            out, lse = prefill(*p.inputs, block_size=8, return_lse=True)
            assert same_bits(out, want[0])
            assert same_bits(lse, want[1])
            with pytest.raises(ValueError, match="block_sparse_gqa_prefill: block_size is -1"):
                prefill(*p.inputs, block_size=-1)

    in_threads([lambda p=p, want=want: work(p, want) for p, want in zip(problems, expected, strict=True)])


def test_the_number_of_threads_changes_no_bit():
    p = Problem("bf16", sq=150, sk=200, hq=8, hkv=4, block=16)
    default = tessera.get_num_threads()
    try:
        results = []
        for n in (1, 2, 3, 7):
            tessera.set_num_threads(n)
            assert tessera.get_num_threads() == n
            results.append(prefill(*p.inputs[:3], p.ids[:, :10], block_size=16))
        assert all(same_bits(r, results[0]) for r in results)
    finally:
        tessera.set_num_threads(0)
    assert tessera.get_num_threads() == default


def test_other_threads_run_during_a_call():
    p = Problem("f32", batch=1, sq=256, sk=256, hq=8, hkv=8, d=64, dv=64, block=256, width=1)
    p.ids[...] = 0
    times = {}

    def call():
        times["start"] = time.perf_counter()
        prefill(*p.inputs, block_size=256, causal=False, backend="reference")
        times["end"] = time.perf_counter()

    thread = threading.Thread(target=call)
    ticks = []
    thread.start()
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0)
    middle = [times["start"] + share * (times["end"] - times["start"]) for share in (0.2, 0.8)]
    assert any(middle[0] < t < middle[1] for t in ticks)


def test_a_forced_variant_belongs_to_its_thread():
    p = Problem("f32")
    inside = threading.Event()
    done = threading.Event()

    def force():
        with tessera.testing.force_variant("no such variant"):
            inside.set()
            done.wait(10)
            with pytest.raises(ValueError, match="no such variant"):
                prefill(*p.inputs, block_size=8)

    def plain():
        inside.wait(10)
        prefill(*p.inputs, block_size=8)
        done.set()

    in_threads([force, plain])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_can_call():
    code = """
import os, sys, numpy as np, tessera
x = np.random.default_rng(0).standard_normal((1, 256, 4, 32), np.float32)
ids = np.arange(16, dtype=np.int32)[None, None].repeat(16, 1)
run = lambda: tessera.block_sparse_gqa_prefill(x, x, x, ids, block_size=16)
tessera.set_num_threads(3)
before = run()
child = os.fork()
if child == 0:
    same = np.array_equal(run(), before)
    os._exit(0 if same and tessera.get_num_threads() == 3 else 1)
assert np.array_equal(run(), before)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_environment_is_obeyed_and_its_mistakes_are_named():
    code = """
import json, numpy as np, tessera
x = np.ones((1, 4, 1, 8), np.float32)
facts = tessera.info()
try:
    tessera.block_sparse_gqa_prefill(x, x, x, np.zeros((1, 1, 1), np.int32))
    facts["error"] = ""
except ValueError as e:
    facts["error"] = str(e)
print(json.dumps(facts))
"""
    import json

    def run(**env):
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, env={**os.environ, **env}, stdout=subprocess.PIPE
        )
        return json.loads(done.stdout)

    facts = run(TESSERA_MAX_ISA="scalar", TESSERA_NUM_THREADS="3")
    assert facts["variant"] == "scalar"
    assert facts["threads"] == 3
    assert facts["error"] == ""
    assert facts["env"]["TESSERA_MAX_ISA"] == "scalar"
    assert {e["reason"] for n, e in facts["variants"].items() if n != "scalar"} <= {
        "TESSERA_MAX_ISA forbids it",
        *(e["reason"] for e in tessera.info()["variants"].values()),
    }
    facts = run(TESSERA_MAX_ISA="sse9")
    assert "TESSERA_MAX_ISA" in facts["error"]


def test_large_results_are_released():
    import resource

    p = Problem("f32", batch=1, sq=2048, sk=64, hq=16, hkv=1, d=8, dv=128, block=64, width=1)
    p.ids = np.zeros((1, 32, 1), np.int32)
    prefill(*p.inputs, block_size=64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(40):  # 16 MiB each
        prefill(*p.inputs, block_size=64)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 << 10
