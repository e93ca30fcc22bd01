"""The command `tessera` in this process, and small sizes of its bench cases."""

from __future__ import annotations

import json

from click.testing import CliRunner
from tessera.cli import main

MODEL = ["--seq", "256", "--heads-q", "4", "--heads-kv", "2", "--dim", "32", "--block", "32", "--topk", "3"]
QSA = ["--seq", "259", "--heads-q", "6", "--heads-kv", "2", "--dim", "32", "--topk", "16"]
NO_CEILING = ("call-overhead", "call-overhead-decode", "topk-blocks", "qsa-indexer")
SMALL = {
    "msa-prefill": MODEL,
    "msa-prefill-token": MODEL,
    "msa-decode": [*MODEL, "--batch", "3"],
    "msa-select": ["--seq", "300", "--heads-q", "3", "--dim", "32", "--block", "32", "--topk", "3"],
    "mass-select": MODEL,
    "moba-select": MODEL,
    "qsa-compress": ["--seq", "300", "--dim", "32"],
    "qsa-score": ["--seq", "403", "--rows", "9", "--dim", "32"],
    "qsa-select": ["--seq", "403", "--rows", "9", "--dim", "32", "--topk", "20"],
    "topk-blocks": ["--keys", "300", "--rows", "5", "--topk", "20"],
    "qsa-indexer": ["--seq", "203", "--topk", "16", "--dim", "32"],
    "qsa-prefill": [*QSA, "--rows", "50"],
    "qsa-decode": [*QSA, "--batch", "3"],
    "qsa-attention": QSA,
    "merge": ["--rows", "64", "--heads-q", "4", "--dim", "32"],
    "dist-model": [*MODEL, "--rows", "256"],
    "call-overhead": [],
    "call-overhead-decode": [],
}


def run(*args, status=0, stdin=None):
    result = CliRunner().invoke(main, list(args), input=stdin)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def lines(*args, status=0):
    return [json.loads(line) for line in run(*args, "--json", status=status).stdout.splitlines()]


def bench(name, *args):
    (line,) = lines("bench", name, *SMALL[name], "--runs", "2", *args)
    return line
