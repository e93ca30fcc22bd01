"""What the indexers are trained on: sources and documentation of installed packages, cut into windows of tokens.

Nothing of Python's own library is among it: the demo's text, and all texts of `evaluate.py`, come from there.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

# Each is pinned in requirements/, or is what those need.
PACKAGES = ("matplotlib", "mpmath", "networkx", "numpy", "sympy", "torch", "transformers")
_SHORTEST = 2000  # characters of a document that is worth reading
_CODE = 0.3  # of the files, the share that is read whole; of the others, the docstrings
_PASSAGES = (1, 6)  # read again in a window, how many
_PASSAGE = (32, 384)  # tokens of one


def versions() -> dict[str, str]:
    return {package: metadata.version(package) for package in PACKAGES}


def documents(seed: int) -> Iterator[str]:
    """All documents in an order that follows from the seed: descriptions of all packages, docstrings and sources."""
    dice = random.Random(seed)
    sources: list[Any] = sorted(metadata.distributions(), key=lambda each: each.name.lower())
    for package in PACKAGES:
        files = metadata.files(package) or []
        sources += sorted(
            Path(str(file.locate())) for file in files if file.suffix == ".py" and "test" not in str(file)
        )
    dice.shuffle(sources)
    for source in sources:
        text = _read(source, dice) if isinstance(source, Path) else source.metadata.get_payload()
        if text and len(text) >= _SHORTEST:
            yield text


def _read(file: Path, dice: random.Random) -> str:
    whole = dice.random() < _CODE
    try:
        text = file.read_text()
        return text if whole else "\n\n".join(_docstrings(text))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        if len(text) > 80:
            yield text if isinstance(node, ast.Module) else f"{node.name}: {text}"


class Windows:
    """Consecutive pieces of the documents, as tokens.

    In each window a few passages stand twice, as one reads again what one has read: a copy takes the place of later text.
    """

    def __init__(self, tokenizer: Any, seed: int):
        self._documents = documents(seed)
        self._tokenizer = tokenizer
        self._dice = random.Random(seed + 1)
        self._waiting: list[int] = []
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of all tokens so far."""
        return self._digest.hexdigest()

    def next(self, tokens: int) -> torch.Tensor:
        """int64 [1, tokens]."""
        while len(self._waiting) < tokens:
            text = next(self._documents, None)
            if text is None:
                raise ValueError("the installed packages hold less text than the training needs")
            self._waiting += self._tokenizer(text).input_ids
        ids = torch.tensor(self._waiting[:tokens])
        del self._waiting[:tokens]
        for _ in range(self._dice.randint(*_PASSAGES)):
            length = self._dice.randint(*_PASSAGE)
            first = self._dice.randrange(0, tokens - 2 * length)
            again = self._dice.randrange(first + length, tokens - length)
            ids[again : again + length] = ids[first : first + length].clone()
        self._digest.update(ids.numpy().tobytes())
        return ids[None]
