"""The report: one HTML file that needs nothing but a browser."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import torch

import tessera
from tessera.demo import BLOCK, figures, indexers, table
from tessera.demo.readers import FRAMEWORK, Reader
from tessera.demo.session import Continuation, Findings, Result
from tessera.demo.table import how_far


def write(path: Path, findings: Findings, command: str, seconds: float) -> None:
    """Writes the report. OSError: the path cannot be written."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    mass = findings.results[findings.featured]
    lines = [table.line(findings, result, None) for group in table.groups(findings) for result in group]
    page = environment.get_template("report.html.jinja").render(
        findings=findings,
        reading=findings.reading,
        featured=findings.featured,
        mass=mass,
        trained=findings.results.get(findings.trained),
        dense=findings.results[FRAMEWORK],
        speedup=findings.speedup(mass),
        attention_speedup=findings.attention_speedup(mass),
        figures=_figures(findings),
        columns=table.COLUMNS,
        groups=[[(result, table.cells(findings, result)) for result in group] for group in table.groups(findings)],
        recalls=[_recall(findings, entry) for entry in findings.continuations],
        losses=where_it_loses(findings),
        block=BLOCK,
        facts=_facts(findings, command, seconds),
        data=json.dumps(lines),
    )
    path.write_text(page, encoding="utf-8")


def _figures(findings: Findings) -> dict[str, str | None]:
    return {
        "quality": figures.quality_against_budget(findings),
        "position": figures.loss_by_position(findings),
        "time": figures.time_against_context(findings) if findings.points else None,
        "blocks": _map(findings, findings.featured),
        "trained_blocks": _map(findings, findings.trained),
    }


def _map(findings: Findings, reader: Reader | None) -> str | None:
    return figures.selected_blocks(findings, reader) if reader in findings.lists else None


def _recall(findings: Findings, entry: Continuation) -> dict[str, Any]:
    """A column for the text itself, then one per reader: who, how far, what agrees with the text, the rest."""
    columns = [("the text itself", "", findings.tokenizer.decode(entry.text), "")]
    for reader, tokens in entry.by.items():
        columns.append((str(reader), how_far(entry, tokens), *findings.split(entry, tokens)))
    return {"passage": entry.passage, "prompt": findings.tokenizer.decode(entry.prompt), "columns": columns}


def where_it_loses(findings: Findings) -> list[str]:
    """Sentences on what these very figures do not look good on."""
    dense, mass = findings.results[FRAMEWORK], findings.results[findings.featured]
    budget = findings.featured.budget
    said = []
    for passage in findings.reading.passages:
        name = passage.name
        loss, best, first = mass.quality.repeat[name], dense.quality.repeat[name], dense.quality.first[name]
        if loss > best + 0.05:
            kept = max(first - loss, 0) / (first - best) if first > best else 0
            said.append(
                f"Passage {name}, {passage.back:,} tokens back: a loss of {loss:.2f} where dense attention has {best:.2f}. "
                f"Of what dense attention gains by having read it before, {kept:.0%} is left."
            )
    smallest = min(
        (r for r in findings.results.values() if r.reader.selector == "mass"), key=lambda result: result.reader.budget
    )
    cost = smallest.quality.ppl / dense.quality.ppl - 1
    if cost > 0.001:
        said.append(
            f"At {smallest.reader.budget:,} tokens, perplexity is {cost:.1%} above dense: "
            f"{smallest.quality.ppl:.2f} against {dense.quality.ppl:.2f}."
        )
    rest = mass.seconds("prefill_s") - mass.seconds("attention_s") - mass.seconds("select_s")
    said.append(
        f"All but attention, which no selection touches, takes {rest:.1f} of the {mass.seconds('prefill_s'):.1f} seconds of "
        f"the sparse prefill: {findings.attention_speedup(mass):.1f}x in attention is {findings.speedup(mass):.1f}x in all."
    )
    if share := mass.seconds("select_s") / (mass.seconds("attention_s") + mass.seconds("select_s")):
        said.append(
            f"Choosing the blocks is {share:.0%} of the sparse attention's time, and grows with the square of the text."
        )
    slow = [
        p.tokens
        for p in findings.points
        if p.reader == findings.featured and p.prefill_s > 0.95 * _prefill(findings, FRAMEWORK, p.tokens)
    ]
    if slow:
        said.append(
            f"On short texts there is nothing to gain: at {max(slow):,} tokens the sparse prefill is no faster."
        )
    said += _about_baselines(findings, dense, mass, budget)
    for selector in ("msa-indexer", "qsa-indexer"):
        if (result := findings.results.get(Reader(selector, budget))) is not None:
            said += _about_indexer(dense, mass, result)
    return said


def _about_baselines(findings: Findings, dense: Result, mass: Result, budget: int) -> list[str]:
    said = []
    window, moba = (findings.results[Reader(selector, budget)].quality for selector in ("window", "moba"))
    cost, window_cost = (quality.ppl / dense.quality.ppl - 1 for quality in (mass.quality, window))
    if window_cost < 3 * max(cost, 0.02):
        said.append(
            f"Perplexity alone would not tell: a sliding window of the same budget, which has forgotten all that lies behind "
            f"it, is only {window_cost:.1%} above dense ({cost:.1%} with sampled mass). The passages tell."
        )
    if abs(moba.ppl - window.ppl) < 0.01 * window.ppl:
        said.append(
            f"Mean keys choose about as well as a sliding window: perplexity {moba.ppl:.2f} and {window.ppl:.2f}. "
            "Models trained with that gate do better by it."
        )
    return said


def _about_indexer(dense: Result, mass: Result, trained: Result) -> list[str]:
    """What a trained indexer loses, and what it costs beside dense attention and beside a rule that needs no training."""
    name, said = trained.reader.name, []
    figures_of = {
        "perplexity": lambda quality: quality.ppl,
        **{f"passage {p}": lambda quality, p=p: quality.repeat[p] for p in trained.quality.repeat},
    }
    ours, best, shared = (
        {what: value(result.quality) for what, value in figures_of.items()} for result in (trained, dense, mass)
    )
    lost = [f"{what} {ours[what]:.2f} ({best[what]:.2f})" for what in ours if ours[what] > 1.002 * best[what]]
    if lost:
        said.append(f"The {name} is not dense attention (in parentheses) either: {', '.join(lost)}.")
    if worse := [what for what in ours if ours[what] > 1.002 * shared[what]]:
        said.append(f"Sampled mass, which looks at all keys to choose, is better than the {name}: {', '.join(worse)}.")
    seconds, of_mass = (r.seconds("attention_s") + r.seconds("select_s") for r in (trained, mass))
    of_dense = dense.seconds("attention_s")
    gain = "No time is saved at this length: the" if seconds > of_dense else "The"
    said.append(
        f"{gain} {name} spends {seconds:.1f} seconds on attention and selection, {trained.seconds('select_s') / seconds:.0%} of "
        f"them on choosing, which grows with the square of the text; the framework's dense attention takes {of_dense:.1f}, "
        f"sampled mass {of_mass:.1f}."
    )
    return said


def _prefill(findings: Findings, reader: Reader, tokens: int) -> float:
    return next(p.prefill_s for p in findings.points if p.reader == reader and p.tokens == tokens)


def _facts(findings: Findings, command: str, seconds: float) -> list[tuple[str, str]]:
    info = tessera.info()
    caches = ", ".join(f"{name.upper()} {size // 1024:,} KiB" for name, size in info["cache_bytes"].items())
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    config_runs = ", ".join(f"{reader}: {len(findings.results[reader].runs)}" for reader in findings.compared)
    alone = findings.framework_alone_s
    facts = [
        ("command", command),
        ("model", f"{findings.model}, {findings.dtype}"),
        ("text", f"{findings.reading.source}, {findings.reading.tokens:,} tokens"),
        ("processor", f"{info['cpu']}, {info['usable_cores']} of {info['cores']} cores usable; {caches}"),
        ("threads", f"{torch.get_num_threads()} of the framework, {info['threads']} of tessera"),
        ("versions", f"tessera {info['version']} (kernel variant {info['variant']}), {versions}"),
        ("timed prefills", f"{config_runs}; the median counts; all others: 1"),
        ("whole demo", f"{seconds:.0f} seconds"),
    ]
    facts[2:2] = [
        ("indexer", indexers.describe(reader.selector, reader.indexer))
        for reader in findings.results
        if reader.indexer is not None and reader.budget == findings.featured.budget
    ]
    if alone is not None:
        facts.insert(
            -1, ("clock's own cost", f"the framework's prefill without a clock in it took {alone:.2f} seconds")
        )
    return facts
