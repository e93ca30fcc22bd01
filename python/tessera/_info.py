"""What the library is, found and would do."""

from __future__ import annotations

import inspect
import os
import platform
from collections.abc import Callable
from typing import Any

from tessera import _core
from tessera._msa_attention import (
    block_sparse_attention_single_q,
    msa_sparse_attention,
    msa_sparse_decode_attention,
)
from tessera._ops import block_sparse_gqa_prefill
from tessera._qsa_attention import qsa_sparse_attention

_EXPLAINED = {
    function.__name__: (inspect.signature(function), explained)
    for function, explained in (
        (block_sparse_gqa_prefill, _core.block_sparse_gqa_prefill_explain),
        (msa_sparse_attention, _core.msa_sparse_attention_explain),
        (msa_sparse_decode_attention, _core.msa_sparse_decode_attention_explain),
        (block_sparse_attention_single_q, _core.block_sparse_attention_single_q_explain),
        (qsa_sparse_attention, _core.qsa_sparse_attention_explain),
    )
}


def set_num_threads(n: int) -> None:
    """Sets the size of the library's thread pool. Results never depend on it.

    Args:
        n: threads; 0 restores the default: TESSERA_NUM_THREADS, else what the affinity mask and the CPU quota of the
            control group allow.

    Raises:
        ValueError: a negative number; TypeError: not an int.
    """
    _core.set_num_threads(n)


def get_num_threads() -> int:
    """The number of threads that a call may use.

    Returns:
        What `set_num_threads` was given, or its default.
    """
    return _core.get_num_threads()


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def info() -> dict[str, Any]:
    """What this installation is and what it found on this machine, as plain values that `json.dumps` takes.

    Returns:
        version: of the library; abi_version: of its C interface; compiler: what built it;
        variant: the kernel variant that is used, None if no variant may be;
        variants: name -> {available, reason (why not)}, best first;
        features: CPU features found that kernels make use of;
        cpu: name of the CPU; cores: of the machine; usable_cores: in this process's affinity mask;
        threads: of the pool; cache_bytes: l1d, l2, l3 as one core sees them;
        env: the TESSERA_* environment variables that are set.
    """
    facts = _core.facts()
    available = [name for name, entry in facts["variants"].items() if entry["available"]]
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "version": facts.pop("version"),
        "variant": available[0] if available else None,
        **facts,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "env": {name: value for name, value in sorted(os.environ.items()) if name.startswith("TESSERA_")},
    }


def explain(operator: str | Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """What a call would do, without doing it: the variant chosen and why no better one, tiles, splits, workspace.

    Args:
        operator: block_sparse_gqa_prefill, msa_sparse_attention, msa_sparse_decode_attention,
            block_sparse_attention_single_q or qsa_sparse_attention, or its name.
        *args, **kwargs: the arguments of the call.

    Returns:
        One line per fact.

    Raises:
        ValueError: an operator that has no plan to explain; and whatever the call itself would refuse.
    """
    name = operator if isinstance(operator, str) else getattr(operator, "__name__", repr(operator))
    if name not in _EXPLAINED:
        raise ValueError(f"explain: operator is {name}; expected {', '.join(_EXPLAINED)}")
    signature, explained = _EXPLAINED[name]
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    return explained(*call.args, *call.kwargs.values())
