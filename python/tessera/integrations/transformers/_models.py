"""Models whose own, trained selection is served: what `enable` changes in the framework's classes and `disable` restores.

A model is a module of this package with `patch()` and `restore()`. It changes nothing for other attention implementations.
It is imported where the installed framework has the model.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

_MODELS = {"minimax_m3_vl": "_minimax_m3", "qwen4_exp": "_qwen4_exp"}
_patched: list = []


def patch() -> None:
    """Does nothing the second time."""
    if _patched:
        return
    for model, ours in _MODELS.items():
        if find_spec(f"transformers.models.{model}") is not None:
            module = import_module(f"tessera.integrations.transformers.{ours}")
            module.patch()
            _patched.append(module)


def restore() -> None:
    while _patched:
        _patched.pop().restore()
