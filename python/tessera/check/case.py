"""One call of an operator, and how its result is judged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Case:
    name: str
    run: Callable[[], Any]
    truth: Callable[[], Any]
    judge: Callable[[Any, Any], float]  # the worst error of a result, beside the truth, as a share of its bound
    optional: bool = False  # a variant may refuse it, though it takes the dtype

    @functools.cached_property
    def known(self) -> Any:
        return self.truth()

    def share(self) -> float:
        return self.judge(self.run(), self.known)
