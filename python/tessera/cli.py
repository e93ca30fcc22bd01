"""The command `tessera`. Exit status: 0 done, 1 a check failed, 2 wrong usage or something needed is missing."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

import click

import tessera

# Name -> where the command is, and its line of help: a command is imported when it is used, for one needs torch, another
# matplotlib, and `tessera info` needs neither.
COMMANDS = {
    "info": ("tessera.cli:info", "Say what is installed, and what it found on this machine."),
    "check": ("tessera.check.command:check", "Check that every operator computes what it should here; seconds."),
    "bench": ("tessera.bench.command:bench", "Time operators against the machine's ceiling and against others."),
    "demo": ("tessera.demo.command:demo", "Let a language model read a long text, dense and sparse; minutes."),
    "plot": ("tessera.plot.command:plot", "Draw what bench or demo have measured and saved."),
}


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tessera.__version__, prog_name="tessera")
def main() -> None:
    """Attention over the blocks that matter: sparse attention for CPUs.

    Start with `tessera info` and `tessera check`, which need nothing but this package. `tessera COMMAND --help` says more
    about each command, and each can print JSON for other programs.

    Exit status: 0 done; 1 a check failed; 2 wrong usage, or something that the command needs is missing. Progress is shown
    on standard error, if that is a terminal.
    """


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(as_json: bool) -> None:
    """Say what is installed, and what it found on this machine.

    A variant is a set of kernels for one level of CPU features. The best one that is available here is used; the
    environment variable TESSERA_MAX_ISA, or --variant of other commands, chooses a lower one. Results differ between
    variants only by rounding.
    """
    facts = tessera.info()
    if as_json:
        click.echo(json.dumps(facts))
        return
    lines = {
        "version": f"{facts['version']} (ABI {facts['abi_version']}, {facts['compiler']})",
        "cpu": f"{facts['cpu']}, {facts['usable_cores']} of {facts['cores']} cores usable",
        "features": facts["features"] or "none that a kernel uses",
        "caches": ", ".join(f"{name} {size // 1024} KiB" for name, size in facts["cache_bytes"].items()),
        "threads": facts["threads"],
        "variant": facts["variant"],
        **{f"  {name}": _state(entry, name == facts["variant"]) for name, entry in facts["variants"].items()},
        **facts["env"],
        **_refusal(),
    }
    width = max(map(len, lines))
    for name, text in lines.items():
        click.echo(f"{name:{width}}  {text}")


def _refusal() -> dict[str, str]:
    """What every call says of an environment variable that makes no sense, if one does not."""
    if not any(name.startswith("TESSERA_") for name in os.environ):
        return {}
    import numpy as np

    row = np.zeros((1, 1, 1, 8), np.float32)
    try:
        tessera.explain("block_sparse_gqa_prefill", row, row, row, np.zeros((1, 1, 1), np.int32))
    except ValueError as error:
        return {"calls fail": str(error).partition(": ")[2]}
    return {}


def _state(entry: dict[str, Any], used: bool) -> str:
    if not entry["available"]:
        return f"not available: {entry['reason']}"
    return "available, used where it takes the dtype" if used else "available"


if __name__ == "__main__":
    main()
