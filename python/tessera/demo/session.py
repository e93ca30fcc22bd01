"""The readings of one demo, in order, and what was found."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median
from typing import Any

import torch

from tessera._terminal import Tell
from tessera.demo.model import CannotRunError, Loaded
from tessera.demo.quality import Quality, quality, token_losses
from tessera.demo.readers import DENSE, FRAMEWORK, UNTRAINED, Outcome, Reader, Timing, attending, continuation, prefill
from tessera.demo.text import Passage, Reading

_ROUNDS = 3  # readings of those whose times are compared, if there is time: the median counts
_WORDS = 32  # tokens of a continuation


@dataclass
class Result:
    reader: Reader
    quality: Quality
    runs: list[Timing]

    def seconds(self, what: str) -> float:
        return median(value for run in self.runs if (value := getattr(run, what)) is not None)

    @property
    def keys_share(self) -> float:
        return self.runs[0].keys_share

    @property
    def peak_mib(self) -> float:
        return max(run.peak_mib for run in self.runs)


@dataclass
class Point:
    """Times at one length of context."""

    tokens: int
    reader: Reader
    prefill_s: float
    attention_s: float  # with selection


@dataclass
class Continuation:
    passage: Passage
    prompt: list[int]  # the tokens right before
    text: list[int]  # how the passage goes on
    by: dict[Reader, list[int]] = field(default_factory=dict)

    def agreeing(self, tokens: list[int]) -> int:
        """How many of the tokens are the text's, before the first that is not."""
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, self.text, strict=True)))


@dataclass
class Findings:
    model: str
    tokenizer: Any
    dtype: str
    reading: Reading
    featured: Reader
    trained: Reader | None = None  # by the MSA indexer, if there is one, at the same budget
    results: dict[Reader, Result] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    continuations: list[Continuation] = field(default_factory=list)
    layer: int | None = None  # whose lists are shown
    lists: dict[Reader, torch.Tensor] = field(default_factory=dict)  # int32 [Hkv, nQ, K]
    left_out: list[str] = field(default_factory=list)
    framework_alone_s: float | None = None  # the framework's prefill without a clock in it
    hint: str | None = None  # what more there could be to see

    @property
    def shown(self) -> tuple[Reader, ...]:
        """The block-sparse readers whose lists, times and continuations are shown."""
        return (self.featured,) if self.trained is None else (self.featured, self.trained)

    @property
    def compared(self) -> tuple[Reader, ...]:
        """The readers whose times are compared."""
        return FRAMEWORK, DENSE, *self.shown

    @property
    def selectors(self) -> list[str]:
        """Of the block-sparse readers."""
        return list(dict.fromkeys(reader.selector for reader in self.results if reader.budget is not None))

    def speedup(self, result: Result) -> float:
        return self.results[FRAMEWORK].seconds("prefill_s") / result.seconds("prefill_s")

    def attention_speedup(self, result: Result) -> float:
        spent = result.seconds("attention_s") + result.seconds("select_s")
        return self.results[FRAMEWORK].seconds("attention_s") / spent

    def split(self, entry: Continuation, tokens: list[int]) -> tuple[str, str]:
        """Tokens as text: the part that agrees with how the passage goes on, and the rest."""
        whole = self.tokenizer.decode(tokens)
        start = self.tokenizer.decode(tokens[: entry.agreeing(tokens)])
        return start, whole[len(start) :]

    @property
    def dense_difference(self) -> float:
        """Of the mean loss, between the two dense readings: rounding alone."""
        return abs(self.results[DENSE].quality.mean_loss - self.results[FRAMEWORK].quality.mean_loss)


def featured_budget(budgets: list[int]) -> int:
    """The budget at which all selectors are compared: the nearest to 1,024."""
    return min(budgets, key=lambda budget: (abs(budget - 1024), budget))


def selectors(indexers: Iterable[str]) -> tuple[str, ...]:
    """All that choose blocks, in the order of their first readings."""
    first, *others = UNTRAINED
    return first, *indexers, *others


def number_of_steps(indexers: Iterable[str], budgets: list[int], quick: bool) -> int:
    return 4 + len(selectors(indexers)) * len(budgets) + (0 if quick else 5)


class Session:
    """Reads. What must be shown comes first; what may be left out, only if it is done in time.

    Args:
        quick: nothing but the readings themselves.
        deadline: perf_counter() after which nothing starts that may be left out; None: nothing is left out.
    """

    def __init__(
        self, loaded: Loaded, reading: Reading, budgets: list[int], *, quick: bool, deadline: float | None, tell: Tell
    ):
        self._model, self._reading, self._budgets = loaded.model, reading, budgets
        self._quick, self._deadline, self._tell = quick, deadline, tell
        self._indexers = loaded.indexers
        self._featured = Reader("mass", featured_budget(budgets))
        self._cost: dict[Reader, float] = {}  # seconds that a reading took, with its losses
        dtype = {torch.bfloat16: "bf16", torch.float32: "f32"}[loaded.model.dtype]
        trained = self._reader("msa-indexer", self._featured.budget) if "msa-indexer" in self._indexers else None
        self.findings = Findings(loaded.name, loaded.tokenizer, dtype, reading, self._featured, trained)

    def _reader(self, selector: str, budget: int) -> Reader:
        return Reader(selector, budget, self._indexers.get(selector))

    @torch.inference_mode()
    def run(self) -> Findings:
        self._warm_up()
        middle = self._featured.budget
        others = [budget for budget in self._budgets if budget != middle]
        self._read(FRAMEWORK)
        self._read(DENSE)
        for selector in selectors(self._indexers):
            self._read(self._reader(selector, middle))
        for selector in ("mass", "moba"):
            for budget in others:
                self._read(Reader(selector, budget))
        if not self._quick:
            self._time_shorter_texts()
        for selector in (*self._indexers, "window", "random"):
            for budget in others:
                self._read_if_in_time(self._reader(selector, budget))
        if not self._quick:
            self._repeat()
        return self.findings

    def _in_time(self, seconds: float) -> bool:
        return self._deadline is None or time.perf_counter() + seconds < self._deadline

    def _warm_up(self) -> None:
        """First calls of everything, and the proof that the losses are those of the model's own logits."""
        self._tell("warming up")
        ids = self._reading.starting(min(512, self._reading.tokens))
        trained = (self._reader(selector, self._featured.budget) for selector in self._indexers)
        for reader in (DENSE, self._featured, *trained, FRAMEWORK):
            outcome = prefill(self._model, ids, reader)
        with attending(self._model, FRAMEWORK):
            own = self._model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        ours = self._model.get_output_embeddings()(outcome.hidden[0, -1])
        if not torch.allclose(ours.float(), own.float(), rtol=0.05, atol=0.05 * own.abs().max().item()):
            raise CannotRunError(
                "this model does more to its logits than one matrix product; its losses cannot be taken here"
            )

    def _read(self, reader: Reader) -> None:
        self._tell(str(reader))
        began = time.perf_counter()
        outcome = prefill(self._model, self._reading.ids, reader, record=self._recorded(reader))
        losses = token_losses(self._model, outcome.hidden, self._reading.ids)
        self._cost[reader] = time.perf_counter() - began
        self.findings.results[reader] = Result(reader, quality(losses, self._reading), [outcome.timing])
        self._keep_lists(reader, outcome)
        if reader in (FRAMEWORK, *self.findings.shown):
            self._continue(reader, outcome)

    def _recorded(self, reader: Reader) -> bool | tuple[int, ...]:
        """Of which layers lists are kept. Those of an indexer are one per token: 47 MB of all layers of a small model."""
        if reader == self.findings.trained and self.findings.layer is not None:
            return (self.findings.layer,)
        return reader == self._featured

    def _read_if_in_time(self, reader: Reader) -> None:
        if self._in_time(self._cost[Reader(reader.selector, self._featured.budget)]):
            self._read(reader)
        else:
            self.findings.left_out.append(str(reader))

    def _keep_lists(self, reader: Reader, outcome: Outcome) -> None:
        """Those of the layer that looks back furthest when the featured reader reads."""
        if not outcome.lists:  # not recorded, or the whole text fits the budget
            return

        def distance(lists: torch.Tensor) -> float:
            own = torch.arange(lists.shape[1])[:, None]
            return (own - lists).masked_fill(lists < 1, 0).sum().item()

        if self.findings.layer is None:
            self.findings.layer = max(outcome.lists, key=lambda layer: distance(outcome.lists[layer]))
        self.findings.lists[reader] = outcome.lists[self.findings.layer]

    def _continue(self, reader: Reader, outcome: Outcome) -> None:
        """From within each passage's second reading on, the last passage first, for the cache only gets shorter."""
        ids = self._reading.ids
        for place, passage in reversed(list(enumerate(self._reading.passages))):
            count = min(_WORDS, passage.length // 2)
            start = passage.again + passage.length - count
            if reader == FRAMEWORK:
                prompt, text = ids[0, start - count : start].tolist(), ids[0, start : start + count].tolist()
                self.findings.continuations.insert(0, Continuation(passage, prompt, text))
                entry = self.findings.continuations[0]
            else:
                entry = self.findings.continuations[place]
            entry.by[reader] = continuation(self._model, reader, outcome.cache, ids, start, count)

    def _time_shorter_texts(self) -> None:
        """The compared readers at an eighth, a quarter and half of the text; the half may be left out."""
        whole = self._reading.tokens
        for share in (8, 4, 2):
            tokens = whole // share
            if share == 2 and not self._in_time(sum(self._cost[reader] for reader in self.findings.compared) / share):
                self.findings.left_out.append(f"times at {tokens:,} tokens")
                continue
            self._tell(f"times at {tokens:,} tokens")
            for reader in self.findings.compared:
                timing = prefill(self._model, self._reading.starting(tokens), reader).timing
                self.findings.points.append(_point(tokens, reader, timing))

    def _repeat(self) -> None:
        """More runs of the compared readers, in turns."""
        seconds = sum(self.findings.results[reader].seconds("prefill_s") for reader in self.findings.compared)
        for turn in range(1, _ROUNDS):
            if not self._in_time(seconds):
                self.findings.left_out.append(f"{_ROUNDS - turn} repetitions for the times' medians")
                return
            self._tell(f"timing again, {turn} of {_ROUNDS - 1}")
            for reader in self.findings.compared:
                # The first repetition leaves the framework exactly as it comes.
                timing = prefill(self._model, self._reading.ids, reader, with_clock=turn > 1).timing
                self.findings.results[reader].runs.append(timing)
                if timing.attention_s is None:
                    self.findings.framework_alone_s = timing.prefill_s


def _point(tokens: int, reader: Reader, timing: Timing) -> Point:
    return Point(tokens, reader, timing.prefill_s, (timing.attention_s or 0.0) + timing.select_s)


def all_points(findings: Findings) -> list[Point]:
    """With those of the whole text."""
    whole = [
        Point(
            findings.reading.tokens,
            reader,
            result.seconds("prefill_s"),
            result.seconds("attention_s") + result.seconds("select_s"),
        )
        for reader, result in findings.results.items()
        if reader in findings.compared
    ]
    return sorted(findings.points + whole, key=lambda point: point.tokens)
