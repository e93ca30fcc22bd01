"""The scripts of one layer: that they run, and that their checks find a wrong result."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import tessera

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {"paged_decode.py": "msa_sparse_attention", "qsa/qsa_attention_layer.py": "qsa_sparse_attention"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_succeeds(name):
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked" in done.stdout


@pytest.mark.parametrize(("name", "operator"), SCRIPTS.items())
def test_a_factor_of_two_percent_is_found(name, operator, monkeypatch):
    attend = getattr(tessera, operator)

    def wrong(*args, **options):
        out, lse = attend(*args, **options)
        return (out if options.get("backend") == "reference" else out * 1.02), lse

    monkeypatch.setattr(tessera, operator, wrong)
    with pytest.raises(AssertionError):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
