"""`tessera plot`: what was measured and saved, as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from tessera._terminal import MissingError
from tessera.bench.lines import Line, at_several_lengths, is_measurement, read_objects

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("scaling", "shares", "maps")


def _picture(_: click.Context, __: click.Parameter, value: str) -> Path:
    path = Path(value)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"{value} ends neither in .png nor in .svg nor in .pdf")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{path.parent} is not a directory")
    return path


@click.command()
@click.argument("file", type=click.File("r"))
@click.option(
    "-o", "--out", required=True, type=click.Path(dir_okay=False), callback=_picture,
    help="Picture to write: .png, .svg or .pdf.",
)  # fmt: skip
@click.option("--kind", type=click.Choice(KINDS), help="What to draw.  [default: what fits the file]")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Only this case; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Say what was written as one JSON object.")
def plot(file: TextIO, out: Path, kind: str | None, cases: tuple[str, ...], as_json: bool) -> None:
    """Draw what `tessera bench --json` or `tessera demo --json` printed to FILE (- for standard input).

    \b
    scaling  time and speed against the length of the context, and the peers' times;
             for files with a case at several lengths
    shares   the share of its ceiling that each measurement reaches
    maps     which blocks the queries of each head attend to, if the demo chose them, or
             {"selection": {"lists": [[[0, 3, -1], ...]], "block_size": 64, "block_q": 64}}
             with lists [heads, lists, entries] such as mass_select(...)[0].tolist()

    \b
    Examples:
      for n in 4096 8192 16384; do tessera bench msa-prefill --seq $n --json; done > lines.json
      tessera plot lines.json -o scaling.svg
      tessera demo --json > demo.json; tessera plot demo.json -o maps.png
    """
    objects = read_objects(file)
    chosen = [line for line in objects if not cases or line.get("case") in cases]
    measurements = [line for line in chosen if is_measurement(line)]
    selections = [line for line in chosen if "selection" in line]
    if not measurements and not selections:
        expected = f"no measurement of {', '.join(cases)}" if cases else "neither measurements nor selections"
        if not cases and any("selector" in line for line in objects):
            expected += ": the demo draws maps of a budget that is smaller than its text"
        raise click.UsageError(f"{file.name} holds {expected}")
    kind = kind or _kind(measurements)
    drawn = selections if kind == "maps" else measurements
    if kind == "shares":
        drawn = [line for line in measurements if line["ceiling"]]
    elif kind == "scaling":
        drawn = at_several_lengths(measurements)
    if not drawn:
        raise click.UsageError(f"{file.name} holds nothing for --kind {kind}")
    _save(kind, drawn, out)
    summary = {"file": str(out), "kind": kind, "cases": list(dict.fromkeys(x["case"] for x in drawn if "case" in x))}
    summary["lines"] = len(drawn)
    text = ", ".join(summary["cases"]) or "selections"
    count = f"{len(drawn)} line{'' if len(drawn) == 1 else 's'}"
    click.echo(json.dumps(summary) if as_json else f"{out}: {kind} of {text}, {count}")


def _kind(measurements: list[Line]) -> str:
    if not measurements:
        return "maps"
    return "scaling" if at_several_lengths(measurements) else "shares"


def _save(kind: str, lines: list[Line], out: Path) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingError("this command needs matplotlib: pip install matplotlib") from error
    from tessera.plot.style import style

    with matplotlib.rc_context(style()):
        figure = _figure(kind, lines)
        metadata: dict[str, Any] = {"Date": None} if out.suffix == ".svg" else {}
        # The layout leaves too little room below maps of equal aspect, so the picture takes what it needs.
        tight: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.12} if kind == "maps" else {}
        figure.savefig(out, dpi=150, metadata=metadata, **tight)


def _figure(kind: str, lines: list[Line]) -> Figure:
    from tessera.plot import maps, scaling, shares

    if kind == "maps":
        try:
            return maps.figure([maps.selection_of(line) for line in lines])
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    return (scaling if kind == "scaling" else shares).figure(lines)
