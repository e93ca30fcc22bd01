"""What was found, as lines of JSON and as a table on the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

import torch

from tessera.demo.readers import FRAMEWORK
from tessera.demo.session import Continuation, Findings, Result

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "", "budget", "perplexity", "late half", "passage A", "passage B", "keys read",
    "prefill, s", "attention, s", "selection, s", "speed-up", "of attention", "peak MiB",
)  # fmt: skip


def line(findings: Findings, result: Result, report: str | None) -> dict[str, Any]:
    """One object of `tessera demo --json`."""
    quality = result.quality
    fields = {
        "selector": result.reader.selector,
        "budget": result.reader.budget,
        "ppl": round(quality.ppl, 4),
        "ppl_late": round(quality.ppl_late, 4),
        "repeat_a": round(quality.repeat["A"], 4),
        "repeat_b": round(quality.repeat["B"], 4),
        "prefill_s": round(result.seconds("prefill_s"), 4),
        "attention_s": round(result.seconds("attention_s"), 4),
        "select_s": round(result.seconds("select_s"), 4),
        "speedup": round(findings.speedup(result), 3),
        "attention_speedup": round(findings.attention_speedup(result), 3),
        "keys_share": round(result.keys_share, 4),
        "peak_rss_mib": round(result.peak_mib, 1),
        "first_a": round(quality.first["A"], 4),
        "first_b": round(quality.first["B"], 4),
        "mean_loss": round(quality.mean_loss, 6),
        "buckets": [{**bucket, "ppl": round(bucket["ppl"], 4)} for bucket in quality.buckets],
        "tokens": findings.reading.tokens,
        "dtype": findings.dtype,
        "runs": len(result.runs),
        "report": report,
    }
    if result.reader == FRAMEWORK:
        alone = findings.framework_alone_s
        fields["prefill_without_clock_s"] = None if alone is None else round(alone, 4)
    if result.reader in findings.lists:
        fields["selection"] = _selection(findings, result)
    return fields


def _selection(findings: Findings, result: Result) -> dict[str, Any]:
    """The lists of one layer, for `tessera plot`: where each query has its own, one per block."""
    reader, lists = result.reader, findings.lists[result.reader]
    every = reader.block_size // reader.block_q
    rows = torch.arange(every - 1, lists.shape[1] + every - 1, every).clamp(max=lists.shape[1] - 1)
    return {
        "title": f"{findings.model} reads {findings.reading.tokens:,} tokens of {findings.reading.source}: layer"
        f" {findings.layer}, {reader.name}, {reader.budget:,} tokens per query"
        + (f", every {every}th query" if every > 1 else ""),
        "block_size": reader.block_size,
        "block_q": reader.block_q * every,
        "lists": lists[:, rows].tolist(),
    }


def cells(findings: Findings, result: Result) -> tuple[str, ...]:
    """The entries of one row, in the order of COLUMNS."""
    quality = result.quality
    select_s = result.seconds("select_s")
    return (
        result.reader.name,
        "all" if result.reader.budget is None else f"{result.reader.budget:,}",
        f"{quality.ppl:.2f}",
        f"{quality.ppl_late:.2f}",
        f"{quality.repeat['A']:.2f}",
        f"{quality.repeat['B']:.2f}",
        f"{result.keys_share:.0%}",
        f"{result.seconds('prefill_s'):.2f}",
        f"{result.seconds('attention_s'):.2f}",
        f"{select_s:.2f}" if select_s else "-",
        f"{findings.speedup(result):.2f}x",
        f"{findings.attention_speedup(result):.2f}x",
        f"{result.peak_mib:,.0f}",
    )


def groups(findings: Findings) -> list[list[Result]]:
    """The dense readings, then each selector's, by budget."""
    found: dict[str, list[Result]] = {}
    for result in findings.results.values():
        key = "" if result.reader.budget is None else result.reader.selector
        found.setdefault(key, []).append(result)
    return [sorted(group, key=lambda result: result.reader.budget or 0) for group in found.values()]


def how_far(entry: Continuation, tokens: list[int]) -> str:
    agreeing = entry.agreeing(tokens)
    return f"{'all' if agreeing == len(tokens) else agreeing} of {len(tokens)} tokens"


def show(findings: Findings, stream: TextIO | None = None) -> None:
    """Never narrower than its entries: a pipe or a narrow terminal gets long lines, not broken ones."""
    from rich.console import Console

    table = _table(findings)
    console = Console(file=stream or sys.stdout, highlight=False)
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)
    back = " and ".join(f"{p.name} {p.back:,}" for p in findings.reading.passages)
    notes = [f"Perplexity is of the text; a passage's figure is its loss when read again ({back} tokens later)."]
    if findings.left_out:
        notes.append(f"Left out to be done in time (--all measures it): {'; '.join(findings.left_out)}.")
    if findings.hint:
        notes.append(findings.hint)
    console.print("\n" + "\n".join(notes), style="dim")
    for entry in findings.continuations:
        console.print(_continuation(findings, entry))


def _table(findings: Findings) -> Table:
    from rich.table import Table
    from rich.text import Text

    reading = findings.reading
    table = Table(
        box=None,
        header_style="dim",
        padding=(0, 2, 0, 0),
        title=f"{findings.model} reads {reading.tokens:,} tokens of {reading.source}, {findings.dtype}",
        title_style="bold",
        title_justify="left",
    )
    for place, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for group in groups(findings):
        table.add_row()
        for place, result in enumerate(group):
            entries = [Text(entry) for entry in cells(findings, result)]
            if place and result.reader.budget is not None:
                entries[0].stylize("dim")
            table.add_row(*entries, style="bold green" if result.reader == findings.featured else "")
    return table


def _continuation(findings: Findings, entry: Continuation) -> Table:
    """How each reader goes on within a passage's second reading; what differs from the passage stands out."""
    from rich.table import Table
    from rich.text import Text

    passage = entry.passage
    table = Table(
        box=None, header_style="dim", padding=(0, 3, 0, 0), title_style="bold", title_justify="left",
        title=f"\nPassage {passage.name}, {passage.back:,} tokens later: the text stops, the model goes on",
    )  # fmt: skip
    table.add_column("the text itself", ratio=1)
    texts = [Text(" ".join(findings.tokenizer.decode(entry.text).split()))]
    for reader, tokens in entry.by.items():
        table.add_column(f"{reader}: {how_far(entry, tokens)}", ratio=1)
        agreeing, other = (" ".join(part.split()) for part in findings.split(entry, tokens))
        texts.append(Text.assemble(agreeing, " " if agreeing and other else "", (other, "red")))
    table.add_row(*texts)
    return table
