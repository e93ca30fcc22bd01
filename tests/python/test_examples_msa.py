"""The scripts of examples/msa: that they run, and that their checks find what a cosine would not."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tessera.compat import msa_neuron

SCRIPTS = Path(__file__).parents[2] / "examples" / "msa"
SMALL = {
    "01_smoke": ["--seq", "300", "--heads-q", "8"],
    "02_parity": ["--seq", "300"],
    "03_benchmark": ["--seq", "128", "300", "--heads-q", "8", "--heads-kv", "2", "--topk", "2", "--runs", "1"],
    "04_cp_merge": ["--seq", "500", "--ranks", "3", "--topk", "3"],
    "05_qparallel": ["--seq", "300", "--heads-q", "4", "--runs", "1"],
}


def run(name, *arguments):
    command = [sys.executable, SCRIPTS / f"{name}.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_all_are_here():
    assert sorted(path.stem for path in SCRIPTS.glob("0*.py")) == list(SMALL)
    readme = (SCRIPTS / "README.md").read_text()
    assert all(f"python examples/msa/{name}.py" in readme for name in SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_script_succeeds(name):
    done = run(name, *SMALL[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok  " in done.stdout
    assert "FAILED" not in done.stdout


def test_more_processes_than_query_blocks():
    done = run("05_qparallel", *SMALL["05_qparallel"], "--processes", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "efficiency" in done.stdout


def test_a_bad_size_fails():
    assert run("01_smoke", "--heads-q", "7").returncode == 1


@pytest.mark.parametrize("name", ["01_smoke", "02_parity", "03_benchmark", "04_cp_merge"])
def test_a_factor_of_two_percent_is_found(name, monkeypatch, capsys):
    prefill, merge = msa_neuron.block_sparse_gqa_prefill, msa_neuron.cp_merge
    monkeypatch.setattr(msa_neuron, "block_sparse_gqa_prefill", lambda *a, **o: prefill(*a, **o) * 1.02)
    monkeypatch.setattr(msa_neuron, "cp_merge", lambda *a, **o: merge(*a, **o) * 1.02)
    monkeypatch.setattr(sys, "argv", [name, *SMALL[name]])
    monkeypatch.syspath_prepend(SCRIPTS)
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    assert stop.value.code == 1
    assert "FAILED" in capsys.readouterr().out
