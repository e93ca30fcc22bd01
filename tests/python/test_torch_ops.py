"""torch.ops.tessera: the ops do what the functions do, and their fake implementations promise what the ops give."""

import inspect
import subprocess
import sys
from contextlib import nullcontext

import pytest
import tessera
import tessera.torch
import torch
from op_calls import CALLS, call_of
from tessera._operators import OPERATORS
from tessera.torch._schema import OPS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map_only

ops = torch.ops.tessera
WITH_OUT = [name for name, row in OPERATORS.items() if row.results and row.has_out]


def op_arguments(name: str, seed: int) -> dict:
    """Arguments of the functional op by name, of which those that the op changes are fresh."""
    args, options = call_of(name, seed)
    op = OPS[name]
    values = op.split({**dict(zip(op.parameters, args, strict=False)), **options})
    if isinstance(values.get("q_offset"), int):
        values["q_offset"] = torch.full((_requests(values),), values["q_offset"], dtype=torch.int32)
    return values


def _requests(values: dict) -> int:
    if "cu_seqlens_q" in values:
        return len(values["cu_seqlens_q"]) - 1
    return values["page_table"].shape[0] if "page_table" in values else _batch(values["q"])


def _batch(q: torch.Tensor) -> int:
    return q.shape[0] if q.ndim == 4 else 1


def positional(name: str, values: dict) -> tuple[tuple, dict]:
    """The same arguments as a call passes them; opcheck wants the defaults left out."""
    arguments = getattr(ops, name).default._schema.arguments
    args = []
    for argument in arguments:
        if argument.kwarg_only or argument.name not in values:
            break
        args.append(values[argument.name])
    rest = {argument.name for argument in arguments[: len(args)]}
    return tuple(args), {key: value for key, value in values.items() if key not in rest}


def as_list(results) -> list[torch.Tensor]:
    return [] if results is None else [results] if isinstance(results, torch.Tensor) else list(results)


def assert_same(actual, expected) -> None:
    for a, b in zip(as_list(actual), as_list(expected), strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def direct(name: str, seed: int):
    """Every result of the function itself: the new tensors, or those that it changed."""
    args, options = call_of(name, seed)
    op = OPS[name]
    results = getattr(tessera, name)(*args, **options, **({op.returns_lse: True} if op.returns_lse else {}))
    if op.row.results:
        return results
    values = dict(zip(op.parameters, args, strict=False))
    return [values[key] for key in op.row.changes if key in values]


def test_every_operator_has_a_row_and_its_ops():
    functions = {name: getattr(tessera, name) for name in tessera.__all__ if name != "qsa_mqa"}
    functions = {name: f for name, f in functions.items() if inspect.isfunction(f)}
    operators = {name for name, f in functions.items() if "backend" in inspect.signature(f).parameters}
    assert operators == set(OPERATORS) == set(CALLS)
    assert set(dir(ops)) >= {*OPERATORS, *(f"{name}_out" for name in WITH_OUT)}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_op_gives_the_bits_of_the_function(name):
    for seed in range(6):
        values = op_arguments(name, seed)
        results = getattr(ops, name)(**values)
        changed = [values[key] for key in OPERATORS[name].changes if key in values]
        assert_same(changed or results, direct(name, seed))


@pytest.mark.parametrize("name", WITH_OUT)
def test_an_out_op_writes_the_same_into_given_tensors(name):
    for seed in range(6):
        expected = as_list(direct(name, seed))
        given = [torch.full_like(tensor, 77) for tensor in expected]
        versions = [tensor._version for tensor in given]
        names = [result.name for result in OPERATORS[name].results]
        assert getattr(ops, name + "_out")(**op_arguments(name, seed), **dict(zip(names, given, strict=True))) is None
        assert_same(given, expected)
        assert [tensor._version for tensor in given] == [version + 1 for version in versions]


@pytest.mark.parametrize("name", OPERATORS)
def test_fake_results_have_the_sizes_of_real_ones(name):
    for seed in range(12):
        real = as_list(direct(name, seed))
        mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
        values = tree_map_only(torch.Tensor, mode.from_tensor, op_arguments(name, seed))
        with mode:
            fake = as_list(getattr(ops, name)(**values))
        for a, b in zip(fake, real if OPERATORS[name].results else [], strict=True):
            assert a.dtype == b.dtype
            assert a.device == b.device
            known = [isinstance(size, int) for size in a.shape]
            assert [size for size, is_known in zip(a.shape, known, strict=True) if is_known] == [
                size for size, is_known in zip(b.shape, known, strict=True) if is_known
            ]
            if all(known):
                assert a.stride() == b.stride()
            else:  # the blocks of the request with the most keys
                assert name == "msa_block_scores"
                assert known == [True] * (a.ndim - 1) + [False]


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name):
    for seed in (0, 4):
        args, options = positional(name, op_arguments(name, seed))
        torch.library.opcheck(getattr(ops, name).default, args, options)


@pytest.mark.parametrize("name", WITH_OUT)
def test_opcheck_of_out(name):
    for seed in (1,):
        names = [result.name for result in OPERATORS[name].results]
        out = dict(zip(names, as_list(direct(name, seed)), strict=True))
        args, options = positional(name, op_arguments(name, seed))
        torch.library.opcheck(getattr(ops, name + "_out").default, args, {**options, **out})


# ---- What is refused ----


def selection(device: str = "cpu"):
    return torch.zeros(2, 5, 2, 8, device=device), torch.zeros(2, 30, 1, 8, device=device)


def test_a_gradient_in_a_list_is_refused():
    values = op_arguments("merge_states", 1)
    values["partials_lse"][0].requires_grad_()
    with pytest.raises(NotImplementedError, match=r"^merge_states: partials\[0\] lse requires a gradient"):
        ops.merge_states(**values)


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - {"cp_merge", "merge_states", "qsa_expand_blocks"}))
def test_a_gradient_is_refused_by_op_and_argument(name):
    values = op_arguments(name, 1)
    wanted = next(key for key, value in values.items() if torch.is_tensor(value) and value.is_floating_point())
    values[wanted].requires_grad_()
    for mode in (None, FakeTensorMode()):
        with pytest.raises(NotImplementedError, match=f"^{name}: {wanted} requires a gradient"), mode or nullcontext():
            getattr(ops, name)(**tree_map_only(torch.Tensor, mode.from_tensor, values) if mode else values)
    if OPERATORS[name].results:
        with torch.no_grad():
            assert not as_list(getattr(ops, name)(**values))[0].requires_grad


def test_a_tensor_that_autograd_has_kept_is_known_to_be_changed():
    weight = torch.ones(3, requires_grad=True)
    scores = torch.zeros(3, 3)
    loss = (scores * weight).sum()
    ends = torch.zeros(3, dtype=torch.int32)
    ops.qsa_mqa_prefill_out(torch.randn(3, 1, 8), torch.randn(3, 8), ends, ends, out=scores)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_other_devices_are_refused_by_op_and_argument():
    q, k = selection()
    for mixed in ((q, k.to("meta")), (q.to("meta"), k)):
        with pytest.raises(ValueError, match="^msa_select: . is on meta; expected CPU memory"):
            ops.msa_select(*mixed, topk=2)
    with FakeTensorMode():
        with pytest.raises(ValueError, match="^msa_select: q is on cuda:0; expected CPU memory"):
            ops.msa_select(*selection("cuda"), topk=2)
        with pytest.raises(ValueError, match="^msa_select: out is on cuda:0; expected CPU memory"):
            ops.msa_select_out(*selection(), topk=2, out=torch.zeros(2, 2, 5, 2, dtype=torch.int32, device="cuda"))


def test_meta_tensors_give_shapes():
    indices = ops.msa_select(*selection("meta"), topk=2)
    assert (indices.device.type, indices.shape, indices.dtype) == ("meta", (2, 2, 5, 2), torch.int32)


def test_wrong_axes_are_refused_without_values():
    with (
        FakeTensorMode(),
        pytest.raises(ValueError, match=r"^msa_select: no form of the call .*: q \[5\], k \[2, 30, 1, 8\]"),
    ):
        ops.msa_select(torch.zeros(5), selection()[1], topk=2)


def test_inference_tensors_are_written():
    ends = torch.full((3,), 3, dtype=torch.int32)
    q, k = torch.randn(3, 1, 8), torch.randn(3, 8)
    with torch.inference_mode():
        scores = torch.zeros(3, 3)
    ops.qsa_mqa_prefill_out(q, k, ends, ends, out=scores)
    with torch.inference_mode():
        ops.qsa_mqa_prefill_out(q, k, ends * 0, ends, out=scores)
    assert_same(scores, tessera.qsa_mqa_prefill(q, k, ends * 0, ends))


def test_importing_tessera_imports_nothing_large():
    code = (
        "import sys, tessera\n"
        "large = {'torch', 'transformers', 'jax', 'numpy', 'ml_dtypes', 'rich', 'click', 'dataclasses'} & set(sys.modules)\n"
        "assert not large, large\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
