"""Definition of the ops, in Python: nothing of the library is built against torch.

One function runs for each call. It is registered for autograd's keys, which dispatch first, and computes there at once if
the tensors are plain ones; only under a tracer or on another device does it go on to what is registered below. A second
function on the way costs more than a whole decode step of a small model's layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tessera.torch._schema import OPS, Op

_LIBRARY = torch.library.Library("tessera", "DEF")
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),  # a unit stride along the features
)


def _keys(*names: str) -> int:
    sets = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return functools.reduce(int.__or__, (keys.raw_repr() for keys in sets))


_NOT_PLAIN = _keys("Python", "PythonDispatcher", "Functionalize", "Meta", "CUDA") & ~_keys("CPU", "AutogradCPU")
_PLAIN = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_BELOW_AUTOGRAD = torch._C._after_autograd_keyset
_increment_version = torch._C._increment_version


def _tensors(op: Op, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """All tensors of a call, with the names of the arguments."""
    for name, value in {**dict(zip(op.names, args, strict=False)), **options}.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", part) for i, part in enumerate(value) if isinstance(part, torch.Tensor))


def _refuse_gradients(op: Op, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    if not torch.is_grad_enabled():
        return
    for name, tensor in _tensors(op, args, options):
        if tensor.requires_grad:
            raise NotImplementedError(
                f"{op.name}: {name} requires a gradient, which would be lost: call .detach() or use torch.no_grad()"
            )


def _entry(op: Op, overload: Any, function: Callable[..., Any], changes: tuple[str, ...]) -> Callable[..., Any]:
    place = [op.names.index(name) for name in changes if name in op.names]  # others come by name alone

    def entry(keys: Any, *args: Any, **options: Any) -> Any:
        if keys.raw_repr() & _NOT_PLAIN:
            _refuse_gradients(op, args, options)
            return overload.redispatch(keys & _BELOW_AUTOGRAD, *args, **options)
        return function(*args, **options)  # which refuses gradients itself

    def changing_entry(keys: Any, *args: Any, **options: Any) -> None:
        if keys.raw_repr() & _NOT_PLAIN:
            _refuse_gradients(op, args, options)
            return overload.redispatch(keys & _BELOW_AUTOGRAD, *args, **options)
        function(*args, **options)
        for name in changes:  # autograd may have kept what was changed
            tensor = options.get(name)
            if tensor is not None and not tensor.is_inference():
                _increment_version((tensor,))
        for at in place:
            if at < len(args) and not args[at].is_inference():
                _increment_version((args[at],))

    return changing_entry if changes else entry


def _functional(op: Op) -> Callable[..., Any]:
    if op.returns_lse:
        return functools.partial(op.function, **{op.returns_lse: True})
    if not op.parts:
        return op.function
    return lambda *args, **options: op.function(**op.public(args, options))


def _out(op: Op) -> Callable[..., Any]:
    names = [result.name for result in op.row.results]

    def packed(*args: Any, **options: Any) -> Any:
        out = tuple(options.pop(name) for name in names)
        return op.function(**op.public(args, options), out=out)

    def single(*args: Any, out: torch.Tensor, **options: Any) -> Any:
        return op.function(**op.public(args, options), out=out)

    if op.packs_out:
        return packed
    return single if op.parts else op.function


def _refuse_devices(op: Op, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    devices = {name: tensor.device for name, tensor in _tensors(op, args, options)}
    if all(device.type == "meta" for device in devices.values()):
        return
    for name, device in devices.items():
        if device.type != "cpu":
            raise ValueError(f"{op.name}: {name} is on {device}; expected CPU memory")


def _new_results(op: Op, args: tuple[Any, ...], options: dict[str, Any]) -> list[torch.Tensor]:
    """Results without values: shapes, dtypes and strides as the function gives them."""
    values = op.bind(args, options)
    results = []
    for i in range(len(op.row.results)):
        try:
            shape = op.shape(values, i)
        except (IndexError, ValueError, AttributeError) as error:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in _tensors(op, args, options))
            raise ValueError(f"{op.name}: no form of the call has tensors of these axes: {shapes}") from error
        sizes = [torch.library.get_ctx().new_dynamic_size() if size is None else size for size in shape]
        results.append(op.like(values).new_empty(sizes, dtype=op.dtype(values, i)))
    return results


def _fake(op: Op, *, new: bool) -> Callable[..., Any]:
    def fake(*args: Any, **options: Any) -> Any:
        _refuse_devices(op, args, options)
        if not new:
            return None
        results = _new_results(op, args, options)
        return results[0] if len(results) == 1 else tuple(results)

    return fake


def _define(
    op: Op, schema: str, function: Callable[..., Any], changes: tuple[str, ...], fake: Callable[..., Any]
) -> None:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=_TAGS)
    overload = getattr(torch.ops.tessera, name).default
    entry = _entry(op, overload, function, changes)
    _LIBRARY.impl(name, entry, "Autograd", with_keyset=True)
    # Any device: the function says which it does not take.
    _LIBRARY.impl(name, functools.partial(entry, _PLAIN), "CompositeExplicitAutograd")
    _LIBRARY._register_fake(name, fake)


def register() -> None:
    for op in OPS.values():
        changes = op.row.changes
        _define(op, op.schema(), _functional(op), changes, _fake(op, new=bool(op.row.results)))
        if op.row.results and op.row.has_out:
            names = tuple(result.name for result in op.row.results)
            _define(op, op.out_schema(), _out(op), names, _fake(op, new=False))
