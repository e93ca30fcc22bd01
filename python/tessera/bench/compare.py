"""`tessera bench --compare`: a measurement beside an earlier one of the same case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from tessera.bench.case import Case
from tessera.bench.lines import Line


@dataclass
class Earlier:
    """The lines of a file, and by how much a case may be slower before it counts."""

    name: str
    lines: list[Line]
    margin: float

    def find(self, case: Case, threads: int, variant: str | None = None) -> Line:
        """The last line of the same case, sizes, dtype and threads; of this variant, if there is one.

        UsageError: there is none.
        """
        same = [
            line
            for line in self.of(case)
            if (line["shape"], line["dtype"], line["threads"]) == (case.shape, case.dtype, threads)
        ]
        if not same:
            wanted = _said(case.shape, case.dtype, threads)
            others = dict.fromkeys(_said(line["shape"], line["dtype"], line["threads"]) for line in self.of(case))
            has = f"; it has {', and '.join(others)}" if others else ""
            raise click.UsageError(f"{self.name} has no {case.name} with {wanted}{has}")
        return next((line for line in reversed(same) if line["variant"] == variant), same[-1])

    def of(self, case: Case) -> list[Line]:
        return [line for line in self.lines if line["case"] == case.name]

    def compare(self, line: Line, case: Case) -> dict[str, Any]:
        """What a new line says beside the earlier one.

        Where both runs measured the same ceiling the times are put into relation to it before they are compared: a clock that
        was lower, or a neighbour, then slows down both. `slower`: `adjusted`, or `ratio` without a ceiling, is above 1 by
        more than the margin.
        """
        old = self.find(case, line["threads"], line["variant"])
        ratio = line["ms"] / old["ms"]
        adjusted = None
        if line["ceiling"] and old["ceiling"] and line["ceiling"]["kind"] == old["ceiling"]["kind"]:
            adjusted = round(old["ceiling"]["share"] / line["ceiling"]["share"], 4)
        return {
            "file": self.name,
            "ms": old["ms"],
            "variant": old["variant"],
            "ratio": round(ratio, 4),
            "adjusted": adjusted,
            "margin": self.margin,
            "slower": (ratio if adjusted is None else adjusted) > 1 + self.margin,
            **_other_machine(line, old),
        }


def _said(shape: dict[str, Any], dtype: str, threads: int) -> str:
    sizes = " ".join(f"{name} {size}" for name, size in shape.items())
    return f"{sizes}, {dtype}, {threads} thread{'' if threads == 1 else 's'}"


def _other_machine(line: Line, old: Line) -> dict[str, str]:
    cpu = old.get("machine", {}).get("cpu")
    return {} if cpu in (None, line["machine"]["cpu"]) else {"cpu": cpu}


def describe(compared: dict[str, Any]) -> str:
    """For people: one line."""
    parts = [f"{compared['ratio']:.3f} of the time in {compared['file']}, {compared['ms']:g} ms"]
    if compared["adjusted"] is not None:
        parts.append(f"{compared['adjusted']:.3f} in relation to the ceilings")
    if "cpu" in compared:
        parts.append(f"which ran on another CPU, {compared['cpu']}")
    within = f"more than {compared['margin']:.0%} slower" if compared["slower"] else "not slower"
    return f"  {', '.join(parts)}: {within}"
