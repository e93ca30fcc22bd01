"""`tessera demo`: what a language model gains and loses by reading block-sparse."""

from __future__ import annotations

import json
import os
import shlex
import time
from importlib.util import find_spec
from pathlib import Path

import click

from tessera._terminal import MissingError, progress
from tessera.demo import BLOCK

# Module -> the distribution that has it.
_NEEDED = {name: name for name in ("torch", "transformers", "accelerate", "gguf", "jinja2", "matplotlib", "psutil")}
_SECONDS = 250  # within which, given the machine can do it, the command is done
_REPORT = "tessera-report.html"
_DIFFERENCE = {"bf16": 1e-2, "f32": 1e-3}  # of the mean loss, between dense and dense: rounding, layer upon layer


def _budgets(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    try:
        budgets = sorted({int(part) for part in value.split(",")})
    except ValueError:
        raise click.BadParameter(f"{value} is not a list of numbers such as 512,1024") from None
    for budget in budgets:
        if budget < 3 * BLOCK or budget % BLOCK:  # the first block and two of the queries' own are always read
            raise click.BadParameter(f"{budget} is not a multiple of {BLOCK} from {3 * BLOCK} on")
    return budgets


def _writable(_: click.Context, __: click.Parameter, value: str) -> Path:
    """Said before the minutes that there would be a report to write after."""
    path = Path(value).resolve()
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.BadParameter(f"{path} cannot be written")
    return path


@click.command()
@click.option(
    "--seq", type=click.IntRange(min=256), metavar="N", default=8192, show_default=True, help="Tokens to read."
)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False),
    help="Text file to read.  [default: Python's own help pages]",
)
@click.option(
    "--model", "directory", type=click.Path(exists=True, file_okay=False),
    help="Directory of a Hugging Face model.  [default: SmolLM2-135M-Instruct]",
)  # fmt: skip
@click.option(
    "--indexers", "indexer_directory", metavar="DIRECTORY", type=click.Path(exists=True, file_okay=False),
    help="Indexers trained for the model: msa.safetensors, qsa.safetensors or both.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["auto", "bf16", "f32"]), default="auto", show_default=True,
    help="Element type; auto: bf16, unless the framework is faster in f32 here.",
)  # fmt: skip
@click.option(
    "--budgets", metavar="N,N...", default="512,1024,2048", show_default=True, callback=_budgets,
    help="Tokens that a query may read, one sparse reading for each.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Only one budget, and no times at shorter texts.")
@click.option("--all", "everything", is_flag=True, help=f"Leave nothing out, be it more than {_SECONDS} seconds.")
@click.option(
    "--report", type=click.Path(dir_okay=False), default=_REPORT, show_default=True, callback=_writable,
    help="Where to write the report.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per reading, for `tessera plot` too.")
def demo(
    seq: int,
    text: str | None,
    directory: str | None,
    indexer_directory: str | None,
    dtype: str,
    budgets: list[int],
    quick: bool,
    everything: bool,
    report: Path,
    as_json: bool,
) -> None:
    """Let a language model read a long text, dense and sparse.

    The same text is read with the framework's dense attention, with this library's, and block-sparse at several budgets:
    so many tokens each query may look at. Shown are the quality of each reading, its time and its memory, as a table and
    as a report for the browser. With --indexers, indexers that were trained for the model choose blocks too, beside the
    rules that need no training. The exit status is 1 if the two dense readings differ by more than rounding.

    `make demo` in the repository gets all that this needs. Elsewhere it is pip install 'tessera-attention[demo]', and the
    small model, or --model; what is missing is said. Nothing is fetched from the network by the command itself.
    """
    began = time.perf_counter()
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise MissingError(f"tessera demo needs {', '.join(missing)}: pip install 'tessera-attention[demo]'")

    # Read when transformers is imported: ask no server for what is not on the disk; and no bars of progress but ours.
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch asks for huge pages; see memory.keep_freed_memory
    import torch

    from tessera.demo import indexers, memory, model, session, table
    from tessera.demo import report as reports
    from tessera.demo import text as texts

    if quick:
        budgets = [session.featured_budget(budgets)]
    try:
        trained = indexers.load(indexer_directory) if indexer_directory else {}
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    memory.keep_freed_memory()
    with progress(session.number_of_steps(trained, budgets, quick)) as tell:
        tell("loading the model")
        try:
            types = {"bf16": torch.bfloat16, "f32": torch.float32}
            loaded = model.load(directory, types[dtype] if dtype in types else model.faster_dtype())
            if loaded.limit is not None and seq > loaded.limit:
                raise ValueError(f"--seq is {seq}; {loaded.name} reads up to {loaded.limit} tokens")
            indexers.check(trained, loaded.model.get_decoder().config, budgets)
            loaded.indexers = trained
            words = Path(text).read_text(encoding="utf-8") if text else texts.library_reference()
            source = Path(text).name if text else "pydoc_data.topics"
            reading = texts.reading(words, source, loaded.tokenizer, seq)
            deadline = None if everything else began + _SECONDS
            reader = session.Session(loaded, reading, budgets, quick=quick, deadline=deadline, tell=tell)
            findings = reader.run()
            if directory is None and indexer_directory is None:
                findings.hint = indexers.HINT
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        except model.CannotRunError as error:
            raise MissingError(str(error)) from error
    reports.write(report, findings, _command(), time.perf_counter() - began)
    if as_json:
        for result in (result for group in table.groups(findings) for result in group):
            click.echo(json.dumps(table.line(findings, result, str(report))))
    else:
        table.show(findings)
        click.echo(f"\nReport: {report}")
    allowed = _DIFFERENCE[findings.dtype]
    if findings.dense_difference > allowed:
        click.echo(
            f"the two dense readings differ by {findings.dense_difference:.2g} of loss, allowed is {allowed}", err=True
        )
        raise SystemExit(1)


def _command() -> str:
    """The command line with the options that were given."""
    context = click.get_current_context()
    words = ["tessera", "demo"]
    for option in context.command.params:
        if context.get_parameter_source(option.name) == click.core.ParameterSource.COMMANDLINE:
            value = context.params[option.name]
            words.append(option.opts[0])
            if not option.is_flag:
                words.append(",".join(map(str, value)) if isinstance(value, list) else str(value))
    return shlex.join(words)
