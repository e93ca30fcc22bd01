"""What a public function says of itself: every argument by name, what it gives, what it raises, where it comes from."""

from __future__ import annotations

import inspect
import re
import typing

import pytest
import tessera
import tessera.compat.mate
import tessera.compat.msa_neuron
import tessera.distributed
import tessera.formats
import tessera.testing

MODULES = (
    tessera,
    tessera.formats,
    tessera.distributed,
    tessera.compat.mate,
    tessera.compat.msa_neuron,
    tessera.testing,
)
FUNCTIONS = {
    f"{module.__name__}.{name}": function
    for module in MODULES
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__.startswith("tessera")
    if not name.startswith("_") and name in getattr(module, "__all__", [name])
}
OPERATORS = sorted(
    name
    for name in FUNCTIONS
    if name.startswith("tessera.")
    and name.count(".") == 1
    and "backend" in inspect.signature(FUNCTIONS[name]).parameters
)
SECTION = re.compile(r"^(Args|Returns|Raises|Source):[ \n]", re.MULTILINE)


def sections(function):
    """The text before the first section as "", and that of each."""
    first, *rest = SECTION.split(inspect.getdoc(function))
    return {"": first} | dict(zip(rest[::2], rest[1::2], strict=True))


def test_all_of_the_package_is_looked_at():
    assert len(OPERATORS) > 20
    public = {name for name in tessera.__all__ if inspect.isfunction(getattr(tessera, name))}
    assert public == {name.removeprefix("tessera.") for name in FUNCTIONS if name.count(".") == 1}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sections(name):
    function = FUNCTIONS[name]
    found = sections(function)
    signature = inspect.signature(function)
    assert found[""].splitlines()[0].endswith((".", ":", ",")) or "\n" in found[""], "a sentence comes first"
    assert list(found) == sorted(found, key=["", "Args", "Returns", "Raises", "Source"].index)
    if signature.parameters and name != "tessera.testing.force_variant":
        assert "Args" in found
        assert "Raises" in found
    if signature.return_annotation != "None" and name != "tessera.testing.force_variant":
        assert "Returns" in found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_named(name):
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    told = re.findall(r"^ {4}(\S.*?):(?: |$)", sections(function).get("Args", ""), re.MULTILINE | re.DOTALL)
    names = {part.strip().lstrip("*") for entry in told for part in re.sub(r"\s+", " ", entry).split(",")}
    assert names == set(parameters)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_give_shapes_dtypes_and_source(name):
    found = sections(FUNCTIONS[name])
    assert {"Args", "Returns", "Raises", "Source"} <= set(found)
    for section in ("Args", "Returns"):
        if not found[section].startswith("    None:"):
            assert re.search(r"\[.*\]|as\s+in\s+`", found[section]), f"{section} has no shape"
    assert re.search(r"\b(bf16|f16|f32|int32|int8|bool)\b|as\s+in\s+`", found["Args"])
    assert re.search(r"ValueError|TypeError|[Aa]s `", found["Raises"])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_everything_is_annotated(name):
    function = FUNCTIONS[name]
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
    hints = {"np": __import__("numpy")}
    typing.get_type_hints(inspect.unwrap(function), localns=hints)
