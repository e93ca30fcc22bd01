"""The package as it is given away: what `make wheel` checks of the source package, without compiling anything."""

from __future__ import annotations

import importlib.metadata
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import tessera

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_source_package_is_complete(tmp_path, monkeypatch):
    backend = pytest.importorskip("scikit_build_core.build")
    monkeypatch.chdir(ROOT)
    name = backend.build_sdist(str(tmp_path))
    assert name == f"tessera_attention-{tessera.__version__}.tar.gz"
    checks = runpy.run_path(str(ROOT / "scripts/check_wheel"))
    checks["check_source"](tmp_path / name)


def test_types_are_announced():
    assert (Path(tessera.__file__).parent / "py.typed").exists()


def test_the_typed_program_runs(capsys):
    runpy.run_path(str(ROOT / "tests/typing/consumer.py"), run_name="__main__")
    assert tessera.__version__ in capsys.readouterr().out


def test_importing_takes_neither_torch_nor_numpy():
    code = "import sys, tessera; print([name for name in ('torch', 'numpy', 'rich', 'click') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_command_of_the_package():
    scripts = {script.name: script.value for script in importlib.metadata.entry_points(group="console_scripts")}
    assert scripts["tessera"] == "tessera.cli:main"
