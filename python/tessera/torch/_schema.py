"""From a function of `tessera` and its row in the table to the arguments of its torch ops."""

from __future__ import annotations

import inspect
from typing import Any

import torch

import tessera
from tessera._operators import OPERATORS, PARTS, Arguments, Operator, Shape

_TYPES = {"int": "SymInt", "bool": "bool", "float": "float", "str": "str"}
_DTYPES = ("output_dtype", "compute_dtype")
_RETURNS_LSE = ("return_lse", "return_softmax_lse")


def _part_names(name: str) -> list[str]:
    return [f"{name}_{part}" for part in PARTS[name].removeprefix("*").split()]


class Op:
    """An operator with everything that its torch ops need to know."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.row: Operator = OPERATORS[name]
        self.function = getattr(tessera, name)
        signature = inspect.signature(self.function).parameters
        self.parameters = list(signature)
        self.defaults = {p.name: p.default for p in signature.values() if p.default is not p.empty}
        self.returns_lse = next((flag for flag in _RETURNS_LSE if flag in signature), None)
        results = [result.name for result in self.row.results]
        self.packs_out = len(results) > 1 and self.returns_lse is None and self.row.has_out
        written = {"out", *results, self.returns_lse} if self.row.results and self.row.has_out else set()
        self.inputs = [p for p in signature.values() if p.name not in written]
        self.parts = [p.name for p in self.inputs if p.name in PARTS]

        # The arguments of the functional op.
        self.names = [name for p in self.inputs for name in (_part_names(p.name) if p.name in PARTS else [p.name])]

    # ---- Schemas ----

    def _declared(self, p: inspect.Parameter) -> str:
        optional = "?" if p.default is None or p.annotation.endswith(" | None") else ""
        if p.name in PARTS:
            kind = "Tensor[]" if PARTS[p.name].startswith("*") else "Tensor"
            default = "=None" if optional else ""
            return ", ".join(f"{kind}{optional} {name}{default}" for name in _part_names(p.name))
        kind = _TYPES.get(p.annotation.removesuffix(" | None"), "Tensor")
        if p.name in _DTYPES:
            kind = "ScalarType"
        if p.name in self.row.changes:
            kind += f"({'ab'[self.row.changes.index(p.name)]}!)"
        default = "" if p.default is p.empty else f"={p.default!r}".replace("'", '"')
        return f"{kind}{optional} {p.name}{default}"

    def _declared_inputs(self) -> str:
        declared = [self._declared(p) for p in self.inputs]
        declared.insert(sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in self.inputs), "*")
        return ", ".join(declared)

    def schema(self) -> str:
        return f"{self.name}({self._declared_inputs()}) -> ({', '.join(['Tensor'] * len(self.row.results))})"

    def out_schema(self) -> str:
        targets = [
            f"Tensor({'abc'[i]}!)" + ("? lse=None" if result.name == "lse" and self.returns_lse else f" {result.name}")
            for i, result in enumerate(self.row.results)
        ]
        return f"{self.name}_out({self._declared_inputs()}, {', '.join(targets)}) -> ()"

    # ---- Arguments ----

    def bind(self, args: tuple[Any, ...], options: dict[str, Any]) -> Arguments:
        """The arguments of a call of an op by name, with those that were left out."""
        given = dict(zip(self.names, args, strict=False))
        defaults = {name: self.defaults.get(name) for name in self.names}
        return Arguments({**defaults, **given, **options})

    def public(self, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of an op as those of the function: parts put together again."""
        values = {**dict(zip(self.names, args, strict=False)), **options}
        for name in self.parts:
            parts = [values.pop(part, None) for part in _part_names(name)]
            if PARTS[name].startswith("*"):
                values[name] = list(zip(*parts, strict=True))
            elif any(part is not None for part in parts):
                values[name] = tuple(parts)
        return values

    def split(self, values: dict[str, Any]) -> dict[str, Any]:
        """The opposite of `public`."""
        for name in self.parts:
            value = values.pop(name, None)
            if PARTS[name].startswith("*"):
                value = [list(part) for part in zip(*value, strict=True)]
            elif value is None:
                continue
            values.update(zip(_part_names(name), value, strict=True))
        return values

    # ---- Results ----

    def dtype(self, values: Arguments, index: int) -> torch.dtype:
        source = getattr(values, self.row.results[index].dtype, None)
        if source is None:
            return getattr(torch, self.row.results[index].dtype)
        if isinstance(source, (list, tuple)):
            source = source[0]
        return source if isinstance(source, torch.dtype) else source.dtype

    def shape(self, values: Arguments, index: int) -> Shape:
        return self.row.results[index].shape(values)

    def like(self, values: Arguments) -> torch.Tensor:
        first = getattr(values, self.names[0])
        return first if isinstance(first, torch.Tensor) else first[0]


OPS = {name: Op(name) for name in OPERATORS}
