"""What the model reads: a long text, and at its end two passages of that text once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SHORTEST = 256  # tokens; below, there is nothing to select from
_FULL = 8192  # tokens from which on passages have their full length and distance
_PASSAGE = 256  # tokens of a passage
_BACK = {"A": 2500, "B": 5000}  # tokens between the beginnings of the two readings of a passage


@dataclass(frozen=True)
class Passage:
    """Tokens [first, first + length) stand again at [again, again + length)."""

    name: str
    first: int
    again: int
    length: int
    skip: int  # tokens at the start of the second reading from which a reader may tell what is coming; not counted

    @property
    def back(self) -> int:
        return self.again - self.first


@dataclass(frozen=True)
class Reading:
    """One window of tokens: `text_tokens` of text, then each passage's second reading."""

    source: str
    ids: torch.Tensor  # int64 [1, tokens]
    text_tokens: int
    passages: tuple[Passage, ...]

    @property
    def tokens(self) -> int:
        return self.ids.shape[1]

    def starting(self, tokens: int) -> torch.Tensor:
        """The first tokens of it, [1, tokens]."""
        return self.ids[:, :tokens]


def library_reference() -> str:
    """The topics of Python's own help: English technical prose of about 113,000 tokens that every CPython has."""
    from pydoc_data import topics

    return "\n\n".join(text for _, text in sorted(topics.topics.items()))


def passages_for(tokens: int) -> tuple[Passage, ...]:
    """Passage A and, twice as far back, passage B. Windows shorter than the full one have shorter ones, less far back."""
    scale = min(tokens / _FULL, 1)
    length = max(round(_PASSAGE * scale), 32)
    found = []
    for place, (name, back) in enumerate(_BACK.items()):
        again = tokens - length * (len(_BACK) - place)
        found.append(Passage(name, again - round(back * scale), again, length, skip=min(16, length // 4)))
    return tuple(found)


def reading(text: str, source: str, tokenizer: Any, tokens: int) -> Reading:
    """The first tokens of a text and the passages; shorter than asked for where the text ends earlier.

    Raises:
        ValueError: a text of less than SHORTEST tokens.
    """
    import torch

    # A book is cut before it is tokenised. 32 characters are more than a token has; where they are not, all is read.
    ids = tokenizer(text[: 32 * tokens], return_tensors="pt").input_ids
    if ids.shape[1] < tokens and len(text) > 32 * tokens:
        ids = tokenizer(text, return_tensors="pt").input_ids
    tokens = min(tokens, ids.shape[1])
    if tokens < SHORTEST:
        raise ValueError(f"{source} has {tokens} tokens; at least {SHORTEST} are needed")
    passages = passages_for(tokens)
    text_tokens = passages[0].again
    parts = [ids[:, :text_tokens], *(ids[:, p.first : p.first + p.length] for p in passages)]
    return Reading(source, torch.cat(parts, dim=1), text_tokens, passages)
