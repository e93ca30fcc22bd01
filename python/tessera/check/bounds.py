"""How far a result may be from the truth, and how far it is.

out       eps * sum_j p_j |v_j| + half a unit in the last place; eps = 2^-8 for bf16, 2^-11 for f16, 2^-18 for f32
lse, m    1e-4 for bf16 and f16, 1e-5 for f32
l         1e-4 relative
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera

EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-18}
LOG_BOUND = {"bf16": 1e-4, "f16": 1e-4, "f32": 1e-5}
L_BOUND = 1e-4
_MANTISSA_BITS = {"bf16": 7, "f16": 10, "f32": 23}
_SMALLEST_EXPONENT = {"bf16": -126, "f16": -14, "f32": -126}


def share(got: Any, want: np.ndarray, bound: np.ndarray | float) -> float:
    """The largest error as a share of its bound; infinite where only one of the two is a NaN or an infinity."""
    got = np.asarray(got).astype(np.float64)
    if got.size == 0:
        return 0.0
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(equal, 0.0, np.abs(got - want) / bound)
    return float(np.where(np.isnan(shares), np.inf, shares).max())


def finite(share: float) -> float | None:
    """For JSON, which has no infinity."""
    return round(share, 4) if np.isfinite(share) else None


def half_ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    _, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))
    exponent = np.maximum(exponent - 1, _SMALLEST_EXPONENT[dtype])
    return np.ldexp(0.5, exponent - _MANTISSA_BITS[dtype])


def out_share(got: Any, want: np.ndarray, spread: np.ndarray, dtype: str) -> float:
    """`spread`: the same average over |v|."""
    values = np.asarray(got).astype(np.float64)
    largest = np.maximum(np.abs(values), np.abs(want))
    return share(values, want, EPSILON[dtype] * spread + half_ulp(largest, dtype))


class AttentionTruth:
    """What attention gives in double precision, by the reference backend: out, lse, o, l, m, and spread = sum_j p_j |v_j|."""

    def __init__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, kv_indices: np.ndarray, **options: Any) -> None:
        call = tessera.block_sparse_gqa_prefill_state
        state = call(q, k, v, kv_indices, backend="reference", **options)
        absolute = call(q, k, np.abs(v), kv_indices, backend="reference", **options)
        self.o, self.l, self.m = (part.astype(np.float64) for part in state)
        self.spread_o = absolute[0].astype(np.float64)
        weight = np.where(self.l > 0, self.l, 1.0)[..., None]  # NaN stays NaN in o
        self.out = self.o / weight
        self.spread = self.spread_o / weight
        with np.errstate(divide="ignore"):
            self.lse = np.where(self.l == 0, -np.inf, self.m + np.log(self.l))

    def out_share(self, out: Any, dtype: str) -> float:
        return out_share(out, self.out, self.spread, dtype)

    def lse_share(self, lse: Any, dtype: str) -> float:
        return share(lse, self.lse, LOG_BOUND[dtype])

    def state_share(self, o: Any, l: Any, m: Any, dtype: str) -> float:
        largest = np.maximum(np.abs(o.astype(np.float64)), np.abs(self.o))
        bound = EPSILON[dtype] * self.spread_o + half_ulp(largest, "f32")
        return max(share(o, self.o, bound), share(l, self.l, L_BOUND * self.l), share(m, self.m, LOG_BOUND[dtype]))
