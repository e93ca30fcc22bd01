"""A trained indexer for a model that has none: small projections beside each attention layer, kept in one file.

File: safetensors with, for each layer i, `layers.i.q_proj.weight` [Hi * Di, hidden], `layers.i.k_proj.weight` [Di, hidden] and,
in the QSA form, `layers.i.k_norm.weight` [Di]; and `Shape` in its metadata. examples/train_indexer makes such files.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch

_FORMAT = "tessera-indexer-1"
_FORMS = ("msa", "qsa")


@dataclasses.dataclass(frozen=True)
class Shape:
    """What all layers of an indexer have in common."""

    form: str  # "msa": a list of blocks per KV head, scored by the best key; "qsa": one list, scored by the mean of the keys
    model_type: str  # of the model's configuration
    hidden_size: int
    layers: int
    heads: int  # Hi; the model's KV heads in the MSA form
    dim: int  # Di
    block_size: int  # tokens
    rope_theta: float
    eps: float = 1e-6  # of the QSA form's norm


class IndexBranch(torch.nn.Module):
    """Index queries and keys of one layer, from what its attention gets: the normalised hidden states."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.q_proj = torch.nn.Linear(shape.hidden_size, shape.heads * shape.dim, bias=False)
        self.k_proj = torch.nn.Linear(shape.hidden_size, shape.dim, bias=False)
        # The weight is an offset from 1, as in the model that the form comes from.
        self.k_norm = _Offset(shape.dim) if shape.form == "qsa" else None

    def queries(self, hidden: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """hidden [B, S, hidden] to rotated queries [B, S, Hi, Di]."""
        q = self.q_proj(hidden).unflatten(-1, (self.shape.heads, self.shape.dim))
        return rotary.turn(q, head_axis=True)

    def keys(self, hidden: torch.Tensor, rotary: Rotary | None) -> torch.Tensor:
        """hidden [B, S, hidden] to keys [B, S, Di]: rotated in the MSA form, raw in the QSA form, whose blocks are rotated."""
        k = self.k_proj(hidden)
        return rotary.turn(k) if self.k_norm is None else k


class _Offset(torch.nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(dim))


class Rotary:
    """RoPE of whole heads at some positions: feature i with i + Di / 2, as in the model."""

    def __init__(self, positions: torch.Tensor, shape: Shape, dtype: torch.dtype):
        """positions int [B, S] or [S]."""
        rates = shape.rope_theta ** (-torch.arange(0, shape.dim, 2, dtype=torch.float64) / shape.dim)
        angles = positions[..., None] * rates
        self._cos, self._sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def turn(self, x: torch.Tensor, head_axis: bool = False) -> torch.Tensor:
        cos, sin = (table.unsqueeze(-2) if head_axis else table for table in (self._cos, self._sin))
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Indexer:
    """The branches of all layers of a model."""

    def __init__(self, shape: Shape):
        self.shape = shape
        self.branches = torch.nn.ModuleList(IndexBranch(shape) for _ in range(shape.layers))
        self._in_dtype: dict[torch.dtype, torch.nn.ModuleList] = {}

    def branch(self, layer: int, dtype: torch.dtype) -> IndexBranch:
        """The branch of a layer that computes in a dtype. It is a copy, made once: weights that change are not followed."""
        if dtype not in self._in_dtype:
            self._in_dtype[dtype] = copy.deepcopy(self.branches).to(dtype)
        return self._in_dtype[dtype][layer]

    def save(self, path: str | Path, about: dict[str, str]) -> None:
        """Writes bf16 weights; `about` is kept beside the shape, for people."""
        from safetensors.torch import save_file

        tensors = {f"layers.{name}": t.detach().bfloat16() for name, t in self.branches.state_dict().items()}
        shape = {name: str(value) for name, value in dataclasses.asdict(self.shape).items()}
        save_file(tensors, path, metadata={**about, **shape, "format": _FORMAT})

    @staticmethod
    def load(path: str | Path) -> Indexer:
        """Reads a file that `save` wrote.

        Raises:
            OSError: no such file; ValueError: a file of another kind, or tensors that do not fit its shape.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                shape = _shape(file.metadata() or {}, path)
                if len(file.keys()) != shape.layers * (3 if shape.form == "qsa" else 2):
                    raise ValueError(f"enable: indexer {path} has {len(file.keys())} tensors for {shape.layers} layers")
                with torch.device("meta"):  # nothing is allocated for sizes that only the metadata claims
                    indexer = Indexer(shape)
                tensors = {name.removeprefix("layers."): file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
            indexer.branches.load_state_dict(tensors, assign=True)
        except (SafetensorError, RuntimeError) as error:
            raise ValueError(f"enable: indexer {path}: {' '.join(str(error).split())}") from error
        indexer.branches.requires_grad_(False)
        return indexer


def _shape(metadata: dict[str, str], path: Any) -> Shape:
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"enable: indexer {path} has the format {metadata.get('format')!r}; expected {_FORMAT!r}")
    types = {"str": str, "int": int, "float": float}
    try:
        shape = Shape(**{f.name: types[f.type](metadata[f.name]) for f in dataclasses.fields(Shape)})
    except (KeyError, ValueError) as error:
        raise ValueError(f"enable: indexer {path}: its metadata lacks a valid {error}") from error
    if shape.form not in _FORMS:
        raise ValueError(f"enable: indexer {path} has the form {shape.form!r}; expected {', '.join(_FORMS)}")
    if min(shape.hidden_size, shape.layers, shape.heads, shape.dim, shape.block_size) < 1 or shape.dim % 2 != 0:
        raise ValueError(f"enable: indexer {path} has sizes {shape}; expected numbers of at least 1, and an even dim")
    if not (0 < shape.rope_theta < float("inf") and 0 <= shape.eps < float("inf")):
        raise ValueError(
            f"enable: indexer {path} has rope_theta {shape.rope_theta} and eps {shape.eps}; expected numbers above 0"
        )
    return shape
