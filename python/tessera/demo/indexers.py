"""Indexers that were trained for the model that reads: a directory of files, as examples/train_indexer makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tessera.integrations.transformers as hf
from tessera.integrations.transformers._indexed import check_fits
from tessera.integrations.transformers._indexer import Indexer

_FORMS = ("msa", "qsa")
HINT = "Trained indexers add their rows with --indexers DIRECTORY; examples/train_indexer makes one."


def load(directory: str) -> dict[str, Indexer]:
    """Selector -> indexer, for each file that is there.

    Raises:
        ValueError: a file that holds no indexer of its form, or no file at all; OSError: a file that cannot be read.
    """
    found = {}
    for form in _FORMS:
        path = Path(directory) / f"{form}.safetensors"
        if not path.exists():
            continue
        try:
            indexer = Indexer.load(path)
        except ValueError as error:
            raise ValueError(f"--indexers: {str(error).removeprefix('enable: ')}") from error
        if indexer.shape.form != form:
            raise ValueError(f"--indexers: {path} has the form {indexer.shape.form!r}; expected {form!r}")
        found[f"{form}-indexer"] = indexer
    if not found:
        names = " nor ".join(f"{form}.safetensors" for form in _FORMS)
        raise ValueError(f"--indexers: {directory} holds neither {names}")
    return found


def check(indexers: dict[str, Indexer], config: Any, budgets: list[int]) -> None:
    """ValueError: an indexer that was trained for another model, or that has no lists of these budgets."""
    for indexer in indexers.values():
        shape = indexer.shape
        if shape.model_type != config.model_type:
            raise ValueError(
                f"--indexers: the {shape.form} indexer is for models of type {shape.model_type!r}; this one is "
                f"{config.model_type!r}"
            )
        try:
            check_fits(shape, config)
            for budget in budgets:
                with hf.options(indexer=indexer, budget=budget):
                    pass
        except (ValueError, NotImplementedError) as error:
            why = str(error).partition(": ")[2]
            raise ValueError(f"--indexers: the {shape.form} indexer: {why}") from error


def describe(selector: str, indexer: Indexer) -> str:
    """Size and shape, for people."""
    shape = indexer.shape
    weights = sum(parameter.numel() for parameter in indexer.branches.parameters())
    return (
        f"{selector.replace('-', ' ')}: {weights:,} weights in {shape.layers} layers, {shape.heads} heads of "
        f"{shape.dim}, blocks of {shape.block_size}"
    )
