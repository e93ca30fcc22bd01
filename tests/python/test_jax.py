"""JAX arrays in and out, eager and under jit."""

import numpy as np
import pytest
import tessera
from doc_blocks import blocks
from op_calls import CALLS, call_of
from tessera._operators import OPERATORS
from tessera.torch._schema import OPS

jax = pytest.importorskip("jax")


def as_jax(value):
    """torch tensors in any nesting as JAX arrays."""
    if isinstance(value, (list, tuple)):
        return type(value)(as_jax(part) for part in value)
    if isinstance(value, dict):
        return {name: as_jax(part) for name, part in value.items()}
    return jax.dlpack.from_dlpack(value.contiguous()) if hasattr(value, "__dlpack__") else value


def flat(results) -> list:
    return list(results) if isinstance(results, tuple) else [results]


@pytest.mark.parametrize("name", [name for name in CALLS if OPERATORS[name].results])
def test_an_operator_gives_jax_arrays_with_the_bits_that_torch_gets(name):
    for seed in (1, 3, 5):
        args, options = call_of(name, seed)
        if OPS[name].returns_lse:
            options[OPS[name].returns_lse] = True
        expected = flat(getattr(tessera, name)(*args, **options))
        actual = flat(getattr(tessera, name)(*as_jax(args), **as_jax(options)))
        for a, b in zip(actual, expected, strict=True):
            assert isinstance(a, jax.Array)
            assert (str(a.dtype), a.shape) == (str(b.dtype).removeprefix("torch."), tuple(b.shape))
            assert np.asarray(a).tobytes() == np.asarray(as_jax(b)).tobytes()


@pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if row.results and row.has_out])
def test_a_jax_array_is_never_written(name):
    args, options = call_of(name, 1)
    out = getattr(tessera, name)(*args, **options)
    with pytest.raises(ValueError, match=f"{name}: .* read-only"):
        getattr(tessera, name)(*args, **options, out=as_jax(out))


def test_caches_have_to_be_writable():
    (k, v, slots, k_cache, *rest), _ = call_of("append_kv", 1)
    with pytest.raises(ValueError, match="append_kv: k_cache .* read-only"):
        tessera.append_kv(k, v, slots, as_jax(k_cache), *rest)


def test_a_traced_array_is_refused_by_name():
    (q, k), options = as_jax(call_of("msa_select", 3))
    with pytest.raises(ValueError, match="msa_select: q cannot be read in place"):
        jax.jit(lambda q: tessera.msa_select(q, k, **options))(q)


def test_the_page_runs():
    names: dict = {}
    found = [block for block in blocks("docs/jax.md") if block.language == "python"]
    assert len(found) == 2
    for block in found:
        exec(compile(block.placed(), block.page, "exec"), names)
    with pytest.raises(ValueError, match="callback"):
        jax.grad(lambda q: names["layer"](q, *(names[x] for x in ("k", "v", "lists"))).sum())(names["q"])
