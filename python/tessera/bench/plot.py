"""`tessera plot`: what `tessera bench --json` has measured, as a picture."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import click

Points = list[tuple[float, float]]


@click.command()
@click.argument("file", type=click.File("r"))
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="Picture to write: .png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="Say what was written as one JSON object.")
def plot(file: TextIO, out: str, as_json: bool) -> None:
    """Draw the lines of `tessera bench --json` in FILE (- for standard input).

    A row of plots per case: speed, share of the ceiling, and ratio to the peers, against the length of the context.
    """
    if Path(out).suffix not in (".png", ".svg"):
        raise click.BadParameter(f"{out} ends neither in .png nor in .svg", param_hint="--out")
    lines = _read(file)
    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError as error:
        raise click.UsageError("this command needs matplotlib: pip install matplotlib") from error
    cases = list(dict.fromkeys(line["case"] for line in lines))
    _draw(cases, lines, out)
    summary = {"file": out, "cases": cases, "lines": len(lines)}
    click.echo(json.dumps(summary) if as_json else f"{out}: {len(lines)} measurements of {', '.join(cases)}")


def _read(file: TextIO) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            line["case"], line["shape"], line["peers"]
        except (ValueError, KeyError, TypeError) as error:
            raise click.UsageError(f"line {number} of {file.name} is not one of `tessera bench --json`") from error
        lines.append(line)
    if not lines:
        raise click.UsageError(f"{file.name} holds no measurement")
    return lines


def _label(line: dict[str, Any]) -> str:
    s = line["shape"]
    heads = f"{s['Hq']}/{s['Hkv']} heads" if "Hkv" in s else f"{s['Hq']} heads"
    return f"{line['dtype']}, {heads}, D {s['D']}, {line['threads']} thr, {line['variant']}"


def _series(lines: Iterable[dict[str, Any]], value: Any) -> dict[str, Points]:
    """label -> (context length, value) in order of length; `value(line)` gives (name, number) pairs."""
    series: dict[str, Points] = {}
    for line in lines:
        length = line["shape"].get("Sk", line["shape"]["Sq"])
        for name, number in value(line):
            if number is not None:
                series.setdefault(f"{_label(line)}{name}", []).append((length, number))
    return {label: sorted(points) for label, points in series.items()}


def _speed(line: dict[str, Any]) -> list[tuple[str, float | None]]:
    return [("", line["gflops"] if line["gflops"] is not None else line["gbps"])]


def _share(line: dict[str, Any]) -> list[tuple[str, float | None]]:
    return [("", line["ceiling"] and line["ceiling"]["share"])]


def _speedup(line: dict[str, Any]) -> list[tuple[str, float | None]]:
    return [(f" over {name}", peer["speedup"]) for name, peer in line["peers"].items()]


def _draw(cases: list[str], lines: list[dict[str, Any]], out: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4 * len(cases)), layout="constrained")
    axes = figure.subplots(len(cases), 3, squeeze=False)
    for row, case in zip(axes, cases, strict=True):
        own = [line for line in lines if line["case"] == case]
        unit = "GFLOP/s" if own[0]["gflops"] is not None else "GB/s"
        kind = own[0]["ceiling"]["kind"] if own[0]["ceiling"] else "no"
        _panel(row[0], f"{case}: {unit}", _series(own, _speed))
        _panel(row[1], f"{case}: share of the {kind} ceiling", _series(own, _share), 1.0)
        _panel(row[2], f"{case}: times as fast as", _series(own, _speedup))
    figure.savefig(out, dpi=120)


def _panel(axes: Any, title: str, series: dict[str, Points], top: float | None = None) -> None:
    for label, points in series.items():
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker="o", label=label)
    if not series:
        axes.set_axis_off()
        return
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("context, tokens")
    axes.grid(alpha=0.3)
    axes.set_ylim(0, top or 1.1 * max(y for points in series.values() for _, y in points))
    lengths = sorted({x for points in series.values() for x, _ in points})
    if len(lengths) > 1:
        axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{x // 1024}K" if x % 1024 == 0 else str(x) for x in lengths])
    axes.minorticks_off()
    axes.legend(fontsize=7)
