"""`tessera bench`: cases timed against the machine's ceiling and against other implementations."""

from __future__ import annotations

import json
from typing import Any

import click

import tessera
from tessera._terminal import Tell, progress
from tessera.bench.case import Case, all_cases
from tessera.bench.measure import Settings, measure, steps
from tessera.check.command import available_variants, refuse_unavailable
from tessera.check.data import DTYPES


def case_options(command: Any) -> Any:
    """The options that a case may take; None where the user says nothing, for each case has its own defaults."""
    sizes = {
        "seq": "Tokens of context of each request.",
        "keys": "Index keys of each request; by default one for each token of --seq, or block of QSA's.",
        "rows": "Query rows of each request, the last ones of its context.",
        "batch": "Requests.",
        "heads-q": "Query heads; of an indexer, its index heads.",
        "heads-kv": "KV heads.",
        "dim": "Head dimension.",
        "block": "Tokens per KV block.",
        "block-q": "Query tokens that share a list; --block by default.",
        "topk": "Blocks in a list.",
    }
    layouts = click.Choice(["rowmajor", "packed"])
    command = click.option("--layout", type=layouts, help="How pages hold keys and values.")(command)
    command = click.option(
        "--decode", is_flag=True, flag_value=True, default=None, help="Few rows over a long context, in pages."
    )(command)
    command = click.option("--page-size", type=click.IntRange(min=1), help="Keys per page.")(command)
    command = click.option(
        "--overlap", type=click.FloatRange(0, 1), help="Share of a row's list that is kept from the row before."
    )(command)
    command = click.option("--dtype", type=click.Choice(list(DTYPES)), help="Element type.")(command)
    for name, text in reversed(sizes.items()):
        command = click.option(f"--{name}", type=click.IntRange(min=1), help=text)(command)
    return command


def _names(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    known = all_cases()
    for name in names:
        if name not in known:
            raise click.BadParameter(f"there is no case {name}; there are {', '.join(known)}")
    return names


def _refuse_foreign(case: type[Case], given: dict[str, Any]) -> None:
    for name in given:
        if name not in case.defaults:
            raise click.UsageError(f"case {case.name} has no option --{name.replace('_', '-')}")


def _make(case: type[Case], given: dict[str, Any]) -> Case:
    try:
        return case(**case.defaults | given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _measure(case: Case, settings: Settings, tell: Tell) -> dict[str, Any]:
    try:
        return measure(case, settings, tell)
    except (ValueError, TypeError, NotImplementedError) as error:  # the library refuses the combination of options
        raise click.UsageError(str(error)) from error


def _epilog() -> str:
    lines = [f"{case.name:20} {case.help}" for case in all_cases().values()]
    return "\b\nCases:\n" + "\n".join(f"  {line}" for line in lines)


@click.command(epilog=_epilog())
@click.argument("cases", nargs=-1, required=True, metavar="CASE...", callback=_names)
@case_options
@click.option("--threads", type=click.IntRange(min=1), help="Threads, of the peers too.  [default: all]")
@click.option("--variant", callback=refuse_unavailable, help="Kernel variant.  [default: the best]")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Repetitions.")
@click.option("--peers/--no-peers", default=True, show_default=True, help="Also time other implementations.")
@click.option(
    "--peer-seconds", type=click.FloatRange(min=0, min_open=True), default=120, show_default=True,
    help="What each peer may take in all; one that needs more for a run is skipped.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def bench(
    cases: tuple[str, ...],
    threads: int | None,
    variant: str | None,
    runs: int,
    peers: bool,
    peer_seconds: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Time operators on the shapes of real models.

    The share is that of the fastest loop this machine runs, measured right before and after each repetition. Peers run
    in turns with the case. A sample of the output is checked against double precision: an error above its bound makes
    the exit status 1.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in cases:
        _refuse_foreign(all_cases()[name], given)
    before = tessera.get_num_threads()
    settings = Settings(runs, threads or before, [variant] if variant else available_variants(), peers, peer_seconds)
    good = True
    tessera.set_num_threads(settings.threads)
    try:
        for name in cases:
            with progress(steps(settings)) as tell:
                tell(f"{name}: making inputs")
                line = _measure(_make(all_cases()[name], given), settings, tell)
            click.echo(json.dumps(line) if as_json else describe(line))
            error = line["check"]["max_err_over_bound"]
            good = good and error is not None and error <= 1
    finally:
        tessera.set_num_threads(before)
    if not good:
        raise SystemExit(1)


def describe(line: dict[str, Any]) -> str:
    """The line for people."""
    shape = " ".join(f"{name} {size}" for name, size in line["shape"].items())
    threads = f"{line['threads']} thread{'s' if line['threads'] > 1 else ''}"
    figures = [f"{line['ms']:g} ms"]
    if line["gflops"]:
        figures.append(f"{line['gflops']:g} GFLOP/s")
    if line["gbps"]:
        figures.append(f"{line['gbps']:g} GB/s")
    for ceiling in filter(None, (line["ceiling"], line.get("arithmetic"))):
        figures.append(f"{ceiling['share']:.3f} of the {ceiling['kind']} ceiling, {ceiling['value']:g}")
    error = line["check"]["max_err_over_bound"]
    notes = [f"first call {line['first_ms']:g} ms"]
    if "growth" in line:
        notes.append(f"{line['growth']:g} of a short context's time and a read of the additional index keys")
    if "workspace_mib" in line:
        notes.append(f"workspace {line['workspace_mib']:g} MiB")
    notes.append("error beyond all bounds" if error is None else f"error {error:.3f} of its bound")
    lines = [
        f"{line['case']}: {shape}, {line['dtype']}, {threads}, {line['variant']}",
        "  " + ", ".join(figures),
        "  " + ", ".join(notes),
    ]
    for name, peer in line["peers"].items():
        if peer["ms"] is None:
            lines.append(f"  {name}: skipped, {peer['skipped']}")
        else:
            fitted = f" (from {peer['fitted_from_tokens']} tokens)" if "fitted_from_tokens" in peer else ""
            lines.append(f"  {name}: {peer['ms']:g} ms{fitted}, tessera is {peer['speedup']:.3g}x as fast")
    return "\n".join(lines)
