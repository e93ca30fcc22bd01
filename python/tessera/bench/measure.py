"""How a case is timed.

A repetition is: the ceiling, the case, the ceiling again, then each peer once. So the share of the ceiling and the ratio to
the peers compare what ran within the same seconds, whatever the clock and the neighbours do over minutes. All
figures are medians over the repetitions. The first call is timed apart: it may start threads and get memory.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import tessera
from tessera import _core
from tessera._terminal import Tell
from tessera.bench.case import Case, Peer, UnavailableError
from tessera.check.bounds import finite
from tessera.testing import force_variant

CEILING_SECONDS = 0.08
GATHER_SECONDS = 0.24  # for several ways of reading, of which the best counts
LEAST_SECONDS = 0.02  # a repetition repeats a shorter call until it takes this long
LONG_SECONDS = 2.0  # the first of such calls tells well enough how long the next will take


@dataclass
class Settings:
    runs: int
    threads: int
    variants: list[str]  # best first; the first that takes the case's dtype is used
    peers: bool
    peer_seconds: float  # what each peer may take in all


@dataclass
class Timed:
    """A call and the seconds that each repetition of it took."""

    run: Callable[[], Any]
    runs: int
    calls: int = 1  # per repetition
    tokens: int | None = None  # if the call is a part of the whole
    growth: float = 1.0  # from the time of that part to the whole's
    seconds: list[float] = field(default_factory=list)

    def repeat(self) -> float:
        start = time.perf_counter()
        for _ in range(self.calls):
            self.run()
        self.seconds.append((time.perf_counter() - start) / self.calls * self.growth)
        return self.seconds[-1]


@dataclass
class Ceiling:
    """What the machine could do, and the share of it that each repetition reached."""

    kind: str
    amount: float  # of one call, in 1e9 of the ceiling's unit
    rate: Callable[[], float]
    values: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def add(self, before: float, after: float, seconds: float) -> None:
        self.values.append((before + after) / 2)
        self.shares.append(self.amount / seconds / self.values[-1])

    def summary(self) -> dict[str, Any]:
        return {"kind": self.kind, "value": _round(median(self.values)), "share": _round(median(self.shares))}


def _time(run: Callable[[], Any]) -> float:
    return Timed(run, 1).repeat()


def _calls(seconds: float) -> int:
    return max(1, math.ceil(LEAST_SECONDS / seconds))


def _first_call(case: Case, variants: list[str]) -> tuple[str, float]:
    """The variant that takes the case, and the seconds of its first call."""
    for name in variants:
        try:
            with force_variant(name):
                return name, _time(case.run)
        except NotImplementedError as error:
            refusal = error
    raise refusal


def _prepare_peer(peer: Peer, case_seconds: float, settings: Settings) -> Timed:
    tokens, growth = None, 1.0
    if peer.probe is None:
        expected = case_seconds * peer.work(None)
    else:
        probe = peer.make(peer.probe)
        probe()
        growth = peer.work(None) / peer.work(peer.probe)
        seconds = _time(probe)
        expected = seconds * growth
        if expected > settings.peer_seconds and peer.fitted:
            tokens, expected = peer.probe, seconds
    if expected > settings.peer_seconds:
        raise UnavailableError(f"a run takes about {expected:.0f} s; --peer-seconds is {settings.peer_seconds:g}")
    runs = min(settings.runs, int(settings.peer_seconds / expected) - 1)
    run = peer.make(tokens)
    timed = Timed(run, max(1, runs), _calls(expected), tokens, growth if tokens else 1.0)
    if runs > 1:
        timed.run()  # memory and caches; a peer that has time for one run alone goes without
    return timed


def _prepare_peers(
    case: Case, case_seconds: float, settings: Settings, tell: Tell
) -> tuple[dict[str, Timed], dict[str, str]]:
    """The peers that run, and the reasons of those that do not."""
    ready: dict[str, Timed] = {}
    skipped: dict[str, str] = {}
    for name, peer in (case.peers() if settings.peers else {}).items():
        tell(f"{case.name}: preparing {name}")
        try:
            ready[name] = _prepare_peer(peer, case_seconds, settings)
        except UnavailableError as reason:
            skipped[name] = str(reason)
    return ready, skipped


def ceilings(case: Case, variant: str, threads: int) -> list[Ceiling]:
    """The one that the case's bound names; where it is memory also that of the arithmetic, which may be the lower one."""

    def loop(kind: str, amount: float | None) -> Ceiling:
        rate = functools.partial(_core.measure_ceiling, kind, variant, threads, CEILING_SECONDS)
        return Ceiling(kind, amount or 0.0, rate)

    compute = loop("bf16_dot" if variant.endswith("bf16") and case.dtype == "bf16" else "f32_fma", case.gflop)
    if case.bound == "gather":
        rate = functools.partial(_core.measure_gather, *case.pieces(), variant, threads, GATHER_SECONDS)
        memory = [Ceiling("gather", case.gbytes or 0.0, rate)]
    else:
        memory = [loop("stream", case.gbytes)] if case.bound == "stream" else []
    return [*memory, *([compute] if case.bound and case.gflop else [])]


def steps(settings: Settings) -> int:
    """How often `measure` calls tell, about."""
    return settings.runs + 5


def measure(case: Case, settings: Settings, tell: Tell) -> dict[str, Any]:
    """One line of `tessera bench --json`."""
    tell(f"{case.name}: first call")
    variant, first = _first_call(case, settings.variants)
    limits = ceilings(case, variant, settings.threads)
    with force_variant(variant):
        second = first if first > LONG_SECONDS else _time(case.run)
        ready, skipped = _prepare_peers(case, second, settings, tell)
        own = Timed(case.run, settings.runs, _calls(second))
        for run in range(settings.runs):
            tell(f"{case.name}: run {run + 1} of {settings.runs}")
            before = [limit.rate() for limit in limits]
            seconds = own.repeat()
            for limit, rate in zip(limits, before, strict=True):
                limit.add(rate, limit.rate(), seconds)
            for timed in ready.values():
                if run < timed.runs:
                    timed.repeat()
        tell(f"{case.name}: check")
        worst = case.check()
        line = _line(case, settings, variant, first, own, limits)
        line |= {"peers": _peers(own, ready, skipped), "check": {"max_err_over_bound": finite(worst)}}
        line |= case.extra(line)
    machine = {name: tessera.info()[name] for name in ("cpu", "usable_cores")}
    return line | {"machine": machine, "version": tessera.__version__}


def _line(
    case: Case, settings: Settings, variant: str, first: float, own: Timed, limits: list[Ceiling]
) -> dict[str, Any]:
    """What is known of the case alone."""
    seconds = median(own.seconds)
    return {
        "case": case.name,
        "shape": case.shape,
        "dtype": case.dtype,
        "threads": settings.threads,
        "variant": variant,
        "ms": _round(seconds * 1e3),
        "first_ms": _round(first * 1e3),
        "runs": settings.runs,
        "gflop": case.gflop and _round(case.gflop),
        "gflops": case.gflop and _round(case.gflop / seconds),
        "gbps": case.gbytes and _round(case.gbytes / seconds),
        "ceiling": limits[0].summary() if limits else None,
        **({"arithmetic": limits[1].summary()} if limits[1:] else {}),
    }


def _peers(own: Timed, ready: dict[str, Timed], skipped: dict[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, timed in ready.items():
        ratios = [theirs / ours for theirs, ours in zip(timed.seconds, own.seconds, strict=False)]
        result[name] = {
            "ms": _round(median(timed.seconds) * 1e3),
            "speedup": _round(median(ratios)),
            "runs": len(timed.seconds),
            **({"fitted_from_tokens": timed.tokens} if timed.tokens else {}),
        }
    for name, reason in skipped.items():
        result[name] = {"ms": None, "speedup": None, "skipped": reason}
    return result


def _round(value: float) -> float:
    return float(f"{value:.4g}") if value < 1e4 else float(round(value, 1))
