"""What the attention implementation does, and switching it on and off. Process-wide, like the framework's registry."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.integrations.transformers._indexer import Indexer, Shape

NAME = "tessera"

_CHOICES = {"selector": ("mass", "moba", "window", "random", "dense", "indexer"), "decode": ("dense", "sparse")}
# Options that say how blocks are chosen without an indexer. With one they keep their defaults.
_WITHOUT_INDEXER = ("block_size", "block_q", "stride", "refresh", "seed")
_AT_LEAST = {
    "block_size": 1,
    "block_q": 1,
    "budget": 1,
    "init_blocks": 0,
    "local_blocks": 1,
    "stride": 1,
    "refresh": 1,
    "seed": 0,
}


def _default(name: str) -> Any:
    return inspect.signature(enable).parameters[name].default


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `enable`, checked."""

    selector: str
    block_size: int
    block_q: int
    budget: int
    dense_threshold: int
    dense_layers: frozenset[int]
    init_blocks: int
    local_blocks: int
    stride: int
    decode: str
    refresh: int
    seed: int
    indexer: Indexer | None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"enable: {name} is {getattr(self, name)!r}; expected {', '.join(choices)}")
        for name, least in {**_AT_LEAST, "dense_threshold": 0}.items():
            if not _is_count(getattr(self, name), least):
                raise ValueError(f"enable: {name} is {getattr(self, name)!r}; expected an int of at least {least}")
        if not all(_is_count(layer, 0) for layer in self.dense_layers):
            raise ValueError(
                f"enable: dense_layers is {sorted(self.dense_layers, key=str)}; expected layer indices from 0"
            )
        if (self.selector == "indexer") != (self.indexer is not None):
            raise ValueError(
                f"enable: selector is {self.selector!r} and indexer {self.indexer}; expected both or neither"
            )
        if self.indexer is not None:
            self._check_indexer(self.indexer.shape)
            return
        if self.budget % self.block_size != 0:
            raise ValueError(f"enable: budget is {self.budget}; expected a multiple of block_size, {self.block_size}")
        # Every query must find its own block listed, whatever the selector prefers: else it may see no key at all.
        own = -(-(self.block_q - 1) // self.block_size) + 1
        least = self.init_blocks + max(self.local_blocks, own)
        if self.selector != "dense" and self.blocks < least:
            raise ValueError(
                f"enable: budget is {self.budget}; expected at least {least * self.block_size}, for {self.init_blocks} "
                f"first blocks and the {least - self.init_blocks} that {self.block_q} queries may be in"
            )

    def _check_indexer(self, shape: Shape) -> None:
        names = [*_WITHOUT_INDEXER, *(("init_blocks", "local_blocks") if shape.form == "qsa" else ())]
        for name in names:
            if getattr(self, name) != (default := _default(name)):
                raise ValueError(
                    f"enable: {name} is {getattr(self, name)}; expected {default}: it does not apply to selection by an "
                    f"indexer in {shape.form.upper()} form"
                )
        forced = self.init_blocks + self.local_blocks if shape.form == "msa" else 1
        if self.budget % shape.block_size != 0 or self.budget < forced * shape.block_size:
            raise ValueError(
                f"enable: budget is {self.budget}; expected a multiple of the indexer's block size, {shape.block_size}, of at "
                f"least {forced * shape.block_size}"
            )

    @property
    def blocks(self) -> int:
        """K, the width of a list."""
        return self.budget // (self.block_size if self.indexer is None else self.indexer.shape.block_size)


_current: Options | None = None


def current() -> Options:
    if _current is None:
        raise RuntimeError(
            'attention implementation "tessera" is not enabled: call tessera.integrations.transformers.enable()'
        )
    return _current


def enable(
    *,
    selector: str = "mass",
    block_size: int = 64,
    block_q: int = 64,
    budget: int = 1024,
    dense_threshold: int | None = None,
    dense_layers: tuple[int, ...] = (),
    init_blocks: int = 1,
    local_blocks: int = 1,
    stride: int = 8,
    decode: str = "dense",
    refresh: int = 16,
    seed: int = 0,
    indexer: str | Path | Indexer | None = None,
) -> None:
    """Registers attention implementation "tessera" and its mask function. Calling it again changes the options.

    Args:
        selector: what chooses the blocks: "mass" (attention of sampled queries), "moba" (mean keys), "window" (the first and
            the last blocks), "random" (first, own and random ones; a baseline), "dense" (all blocks),
            "indexer" (a trained one).
        block_size: tokens per KV block.
        block_q: query tokens that share a list.
        budget: tokens that a list holds, forced blocks included; a multiple of block_size.
        dense_threshold: keys up to which a call is dense; None: budget.
        dense_layers: indices of layers that are always dense.
        init_blocks: blocks at the start that are always listed.
        local_blocks: blocks up to and including a query's own that are always listed.
        stride: selector "mass" looks at every stride-th query.
        decode: "dense" (exact) or "sparse": single tokens read selected blocks too, chosen anew every `refresh` tokens;
            the blocks that have begun since are always read.
        refresh: tokens between selections of sparse decode.
        seed: of selector "random".
        indexer: file of an indexer that was trained for the model, as examples/train_indexer makes them. It says the size of
            blocks, and chooses for each token alone: so block_size, block_q, stride, refresh and seed keep their defaults,
            and selector is "indexer", which need not be said. In QSA form also init_blocks and local_blocks keep theirs: the
            tokens of the block that is not complete are always attended to.

    Raises:
        ValueError: an option out of range, a budget too small for the blocks that must be listed, or a file that holds no
            indexer; OSError: a file that cannot be read.
        NotImplementedError: an indexer for a model that is not served.
    """
    if indexer is not None:
        from tessera.integrations.transformers._indexer import Indexer

        if not isinstance(indexer, Indexer):
            indexer = Indexer.load(indexer)
        if selector == _default("selector"):
            selector = "indexer"
    _switch(
        Options(
            selector=selector,
            block_size=block_size,
            block_q=block_q,
            budget=budget,
            dense_threshold=budget if dense_threshold is None else dense_threshold,
            dense_layers=frozenset(dense_layers),
            init_blocks=init_blocks,
            local_blocks=local_blocks,
            stride=stride,
            decode=decode,
            refresh=refresh,
            seed=seed,
            indexer=indexer,
        )
    )


def disable() -> None:
    """Removes attention implementation "tessera" from the framework's registry."""
    _switch(None)


@contextmanager
def options(**changes: Any) -> Iterator[Options]:
    """Inside the `with` block some options of `enable` are changed; it need not have been called before.

    `dense_threshold` follows a changed budget unless it is given too.
    """
    before = _current
    if before is None:
        enable(**changes)
    else:
        kept = {field.name: getattr(before, field.name) for field in dataclasses.fields(before)}
        if "budget" in changes:
            kept["dense_threshold"] = None
        if changes.get("indexer") is not None:
            kept |= {name: _default(name) for name in ("selector", *_WITHOUT_INDEXER)}
        elif changes.get("selector", "indexer") != "indexer":
            kept["indexer"] = None
        enable(**{**kept, **changes})
    try:
        yield current()
    finally:
        _switch(before)


def _switch(to: Options | None) -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    from tessera.integrations.transformers import _attention, _decode, _indexed, _mask, _models

    global _current
    _indexed.use(None if to is None else to.indexer)
    _current = to
    _decode.forget()
    if to is not None:
        AttentionInterface.register(NAME, _attention.attention)
        AttentionMaskInterface.register(NAME, _mask.causal_mask)
        _models.patch()
    else:
        _models.restore()
        # The framework has no call to take an implementation back; its class-wide registry is a dict.
        AttentionInterface._global_mapping.pop(NAME, None)
        AttentionMaskInterface._global_mapping.pop(NAME, None)
