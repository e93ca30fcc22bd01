"""What the commands share: progress for a person who watches, plain text for everyone else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

Tell = Callable[[str], None]


class MissingError(click.ClickException):
    """Something that the command needs, and that this machine lacks."""

    exit_code = 2


@contextmanager
def progress(total: int) -> Iterator[Tell]:
    """Gives a function that says what comes next; each call but the first counts one of `total` steps as done.

    Shown on standard error, and only if that is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=30), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        told = 0

        def tell(text: str) -> None:
            nonlocal told
            bar.update(task, completed=told, description=text)
            told += 1

        yield tell


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by their widest entry; those whose entries look like numbers to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [all(row[i][:1].isdigit() or row[i] == "-" for row in cells[1:]) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
