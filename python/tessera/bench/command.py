"""`tessera bench`: cases timed against the machine's ceiling and against other implementations."""

from __future__ import annotations

import json
from typing import Any, TextIO

import click

import tessera
from tessera._terminal import Tell, progress
from tessera.bench import compare as comparing
from tessera.bench.case import Case, all_cases
from tessera.bench.dist_model import describe as describe_model
from tessera.bench.lines import read_measurements
from tessera.bench.measure import Settings, measure, steps
from tessera.check.command import available_variants, refuse_unavailable
from tessera.check.data import DTYPES

_COUNT = click.IntRange(min=1)


def case_options(command: Any) -> Any:
    """The options that a case may take; None where the user says nothing, for each case has its own defaults."""
    sizes = {
        "seq": "Tokens of context of each request: how long the text is.",
        "keys": "Index keys of each request.  [default: one per token of --seq, or per block of QSA's]",
        "rows": "Query rows of each request, the last ones of its context: the tokens that are computed.",
        "batch": "Requests.",
        "heads-q": "Query heads; of an indexer, its index heads.",
        "heads-kv": "KV heads.",
        "dim": "Head dimension.",
        "block": "Tokens per KV block.",
        "block-q": "Query tokens that share a list.  [default: --block]",
        "topk": "Blocks in a list: how many of them a row attends to.",
    }
    layouts = click.Choice(["rowmajor", "packed"])
    command = click.option("--layout", type=layouts, help="How pages hold keys and values.")(command)
    command = click.option(
        "--decode", is_flag=True, flag_value=True, default=None, help="Few rows over a long context, in pages."
    )(command)
    command = click.option("--page-size", type=_COUNT, metavar="N", help="Keys per page.")(command)
    command = click.option(
        "--overlap", type=click.FloatRange(0, 1), metavar="0..1", help="Share of a row's list kept from the row before."
    )(command)
    command = click.option("--dtype", type=click.Choice(list(DTYPES)), help="Element type.")(command)
    network = click.FloatRange(min=0, min_open=True)
    command = click.option(
        "--latency", type=network, metavar="US", help="Of dist-model: microseconds of a message.  [default: 5]"
    )(command)
    command = click.option(
        "--bandwidth", type=network, metavar="GB/S", help="Of dist-model: what a rank sends a second.  [default: 10]"
    )(command)
    for name, text in reversed(sizes.items()):
        command = click.option(f"--{name}", type=_COUNT, metavar="N", help=text)(command)
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
    return (
        "\b\nCases:\n"
        + "\n".join(f"  {line}" for line in lines)
        + """

\b
Examples:
  tessera bench msa-decode --seq 65536 --no-peers
  tessera bench msa-prefill msa-select --json > old.json
  tessera bench msa-prefill msa-select --compare old.json
"""
    )


@click.command(epilog=_epilog())
@click.argument("cases", nargs=-1, required=True, metavar="CASE...", callback=_names)
@case_options
@click.option("--threads", type=_COUNT, metavar="N", help="Threads, of the peers too.  [default: all]")
@click.option(
    "--variant", metavar="NAME", callback=refuse_unavailable,
    help="Kernel variant; `tessera info` names them.  [default: the best]",
)  # fmt: skip
@click.option("--runs", type=_COUNT, metavar="N", default=5, show_default=True, help="Repetitions; medians are shown.")
@click.option(
    "--peers/--no-peers", default=True, show_default=True, help="Also time other implementations, which need torch."
)
@click.option(
    "--peer-seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", default=120, show_default=True,
    help="What each peer may take in all; one that needs more for a run is skipped.",
)  # fmt: skip
@click.option(
    "--compare", type=click.File("r"), metavar="FILE",
    help="Compare with what --json printed earlier; a slowdown makes the exit status 1.",
)  # fmt: skip
@click.option(
    "--margin", type=click.FloatRange(min=0), metavar="SHARE", default=0.1, show_default=True,
    help="Of --compare: what does not count as a slowdown yet.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per case and line.")
def bench(
    cases: tuple[str, ...],
    threads: int | None,
    variant: str | None,
    runs: int,
    peers: bool,
    peer_seconds: float,
    compare: TextIO | None,
    margin: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Time operators on the shapes of real models.

    Without options a case has the shape of the model that it comes from, bf16, and all threads. A time is shown beside others
    that are taken within the same seconds: that of the fastest loop which this machine runs (the ceiling, of which the
    case reaches a share), and those of other implementations (the peers).

    A sample of the output is checked against double precision. An error above its bound makes the exit status 1.

    With --compare the exit status is also 1 if a case has become slower than in FILE by more than --margin. Times are put
    into relation to the ceilings of their runs first, where there are any, for the clock and the neighbours of a machine
    change from day to day by more than most work on a kernel does. FILE must hold the case with the same sizes, dtype and
    threads.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in cases:
        _refuse_foreign(all_cases()[name], given)
    earlier = comparing.Earlier(compare.name, read_measurements(compare), margin) if compare else None
    before = tessera.get_num_threads()
    settings = Settings(runs, threads or before, [variant] if variant else available_variants(), peers, peer_seconds)
    good = True
    tessera.set_num_threads(settings.threads)
    try:
        for name in cases:
            with progress(steps(settings)) as tell:
                tell(f"{name}: making inputs")
                case = _make(all_cases()[name], given)
                if earlier:
                    earlier.find(case, settings.threads)
                line = _measure(case, settings, tell)
            if earlier:
                line["compare"] = earlier.compare(line, case)
            click.echo(json.dumps(line) if as_json else describe(line))
            good = good and _is_good(line)
    finally:
        tessera.set_num_threads(before)
    if not good:
        raise SystemExit(1)


def _is_good(line: dict[str, Any]) -> bool:
    error = line["check"]["max_err_over_bound"]
    return error is not None and error <= 1 and not line.get("compare", {}).get("slower", False)


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
    if "compare" in line:
        lines.append(comparing.describe(line["compare"]))
    lines += describe_model(line.get("model", []))
    for name, peer in line["peers"].items():
        if peer["ms"] is None:
            lines.append(f"  {name}: skipped, {peer['skipped']}")
        else:
            fitted = f" (from {peer['fitted_from_tokens']} tokens)" if "fitted_from_tokens" in peer else ""
            lines.append(f"  {name}: {peer['ms']:g} ms{fitted}, tessera is {peer['speedup']:.3g}x as fast")
    return "\n".join(lines)
