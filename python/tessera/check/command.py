"""`tessera check`: every operator, variant and dtype against the reference, as a table."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

import tessera
from tessera._terminal import Tell, progress, table
from tessera.check.bounds import finite
from tessera.check.data import DTYPES
from tessera.check.operators import OPERATORS, Case
from tessera.testing import force_variant


@dataclass
class Result:
    operator: str
    variant: str
    dtype: str
    cases: int = 0
    max_err_over_bound: float = 0.0
    worst_case: str = ""
    ok: bool = True

    @property
    def verdict(self) -> str:
        return "ok" if self.ok else "FAILED"

    def add(self, case: Case) -> None:
        """Runs the case. An exception counts as an infinite error, but for NotImplementedError, which is passed on."""
        name = case.name
        try:
            share = case.share()
        except NotImplementedError:
            raise
        except Exception as error:
            share, name = math.inf, f"{case.name}: {error}"
        self.cases += 1
        if share > self.max_err_over_bound or not self.worst_case:
            self.max_err_over_bound, self.worst_case = share, name
        self.ok = self.max_err_over_bound < 1


def _check(operator: str, variants: list[str], dtype: str) -> list[Result]:
    results = {name: Result(operator, name, dtype) for name in variants}
    for case in OPERATORS[operator](dtype):
        for name in list(results):
            try:
                with force_variant(name):
                    results[name].add(case)
            except NotImplementedError:  # the variant does not take the dtype
                if not case.optional:
                    del results[name]
    return list(results.values())


def _run(operators: list[str], variants: list[str], dtypes: list[str], tell: Tell) -> Iterator[Result]:
    for operator in operators:
        for dtype in dtypes:
            tell(f"{operator} {dtype}")
            yield from _check(operator, variants, dtype)


def available_variants() -> list[str]:
    return [name for name, entry in tessera.info()["variants"].items() if entry["available"]]


def refuse_unavailable(_: click.Context, __: click.Parameter, value: str | tuple[str, ...] | None) -> object:
    """A click callback: variants that exist but cannot run here are a mistake of usage."""
    known = tessera.info()["variants"]
    for name in (value,) if isinstance(value, str) else value or ():
        if name not in known:
            raise click.BadParameter(f"there is no variant {name}; there are {', '.join(known)}")
        if not known[name]["available"]:
            raise click.BadParameter(f"variant {name} cannot run here: {known[name]['reason']}")
    return value


def _epilog() -> str:
    return "\b\nOperators:\n" + "\n".join(f"  {name}" for name in OPERATORS)


@click.command(epilog=_epilog())
@click.option(
    "--operator", "operators", multiple=True, type=click.Choice(list(OPERATORS)), metavar="NAME",
    help="Only this operator; may be given several times, as the next two.",
)  # fmt: skip
@click.option(
    "--variant", "variants", multiple=True, metavar="NAME", callback=refuse_unavailable,
    help="Only this kernel variant; `tessera info` names them.",
)  # fmt: skip
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(list(DTYPES)), help="Only this element type.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row of the table.")
def check(operators: tuple[str, ...], variants: tuple[str, ...], dtypes: tuple[str, ...], as_json: bool) -> None:
    """Check that every operator computes what it should on this machine.

    Each operator is run with every kernel variant that the CPU has and every element type, on small inputs with odd sizes,
    and compared with the same in plain double precision. Shown is the worst error as a share of what rounding explains,
    its bound: below 1 is right. At 1 and above, or if a call raises an exception, the row says FAILED and the exit status
    is 1. It takes seconds.
    """
    chosen = list(operators or OPERATORS), list(variants) or available_variants(), list(dtypes or DTYPES)
    start = time.perf_counter()
    with progress(len(chosen[0]) * len(chosen[2])) as tell:
        results = list(_run(*chosen, tell))
    seconds = time.perf_counter() - start
    if as_json:
        for r in results:
            click.echo(json.dumps(asdict(r) | {"max_err_over_bound": finite(r.max_err_over_bound)}))
    else:
        header = ("operator", "variant", "dtype", "cases", "error / bound", "worst case", "")
        rows = [
            (r.operator, r.variant, r.dtype, str(r.cases), f"{r.max_err_over_bound:.3f}", r.worst_case, r.verdict)
            for r in results
        ]
        click.echo(table(header, rows))
        failed = sum(not r.ok for r in results)
        click.echo(f"{len(results) - failed} of {len(results)} within their bounds, {seconds:.1f} s")
    if not all(r.ok for r in results):
        raise SystemExit(1)
