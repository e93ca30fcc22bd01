"""What Dynamo reads in place of the functions of `tessera`: the same calls as torch ops."""

from __future__ import annotations

from typing import Any

import torch

from tessera._operators import Arguments, requests
from tessera.torch._schema import OPS, Op


def _offset_as_tensor(values: dict[str, Any]) -> None:
    offset = values.get("q_offset")
    if isinstance(offset, (int, torch.SymInt)):
        count = requests(Arguments(values))
        values["q_offset"] = torch.full((count,), offset, dtype=torch.int32)


def _targets(op: Op, values: dict[str, Any]) -> list[Any]:
    """The tensors to write into, None for those that the caller leaves to the operator."""
    out = values.pop("out", None)
    if op.packs_out:
        return list(out) if out is not None else [None] * len(op.row.results)
    return [out, values.pop("lse", None)] if op.returns_lse else [out]


def call(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """`tessera.<name>(*args, **options)` by torch.ops.tessera."""
    op = OPS[name]
    values = {**op.defaults, **dict(zip(op.parameters, args, strict=False)), **options}
    _offset_as_tensor(values)
    returns_lse = values.pop(op.returns_lse, False)
    targets = _targets(op, values) if op.row.results and op.row.has_out else []
    values = op.split(values)
    if all(target is None for target in targets):
        results = getattr(torch.ops.tessera, name)(**values)
    else:
        arguments = Arguments(values)
        wanted = [True, returns_lse or targets[-1] is not None] if op.returns_lse else [True] * len(targets)
        results = [
            op.like(arguments).new_empty(op.shape(arguments, i), dtype=op.dtype(arguments, i))
            if target is None and wanted[i]
            else target
            for i, target in enumerate(targets)
        ]
        names = [result.name for result in op.row.results]
        getattr(torch.ops.tessera, name + "_out")(**values, **dict(zip(names, results, strict=True)))
        results = results[0] if len(results) == 1 else tuple(results)
    return results[0] if op.returns_lse and not returns_lse else results
