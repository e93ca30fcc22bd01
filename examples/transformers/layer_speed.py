"""Time and memory of one layer with the heads of a real model, bf16: tessera and the model's own sdpa attention.

    python examples/transformers/layer_speed.py --model m3                  # prefill of 4K, 32K alone, decode at 32K
    python examples/transformers/layer_speed.py --model m3 --prefill 6144 --alone --decode    # needs 17 GiB for sdpa
    python examples/transformers/layer_speed.py --model m3 --prefill --alone 65536 --decode 65536

Every measurement is a process of its own, so that its peak memory is its own. Milliseconds are those of the attention module:
projections, norms, rotation, indexer, cache and attention. The hidden size is small by default, for projections cost the same
with every attention; what they took is said, too. Decode is the median of steps behind a cache of random keys, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter, process_time
from typing import Any

STEPS = 15  # of decode, after warm-up
CLOCKS = {"wall": perf_counter, "cpu": process_time}


class Clock:
    """Seconds in some modules that do not contain each other, by laps."""

    def __init__(self, now: Callable[[], float], modules: Iterable[Any]) -> None:
        self.laps: list[float] = []
        self._sum = 0.0
        for module in modules:
            module.register_forward_pre_hook(lambda *_: self._add(-now()))
            module.register_forward_hook(lambda *_: self._add(now()))

    def _add(self, seconds: float) -> None:
        self._sum += seconds

    def lap(self) -> None:
        self.laps.append(self._sum)
        self._sum = 0.0


def measure(
    model_name: str, implementation: str, kind: str, clock: str, length: int, hidden: int, threads: int
) -> dict[str, float]:
    import tessera
    import tessera.integrations.transformers as hf
    import torch
    import transformers
    from sparse_models import MODELS

    torch.set_num_threads(threads)
    tessera.set_num_threads(threads)
    if implementation == "tessera":
        hf.enable()
    model = MODELS[model_name].layer(hidden)
    model.set_attn_implementation(implementation)
    attention = MODELS[model_name].attention(model)
    linears = [module for module in attention.modules() if isinstance(module, torch.nn.Linear)]
    now = CLOCKS[clock]
    whole, linear = Clock(now, [attention]), Clock(now, linears)
    cache = transformers.DynamicCache(config=model.config)
    prompt, steps = (length, 0) if kind == "prefill" else (1, STEPS + 2)
    if kind == "decode":
        MODELS[model_name].fill(cache, length)
    with torch.no_grad():
        for rows in [prompt] + [1] * steps:
            model(inputs_embeds=torch.randn(1, rows, hidden, dtype=torch.bfloat16), cache=cache, use_cache=True)
            whole.lap()
            linear.lap()
    last = max(steps - 2, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"ms": 1e3 * median(whole.laps[-last:]), "linear_ms": 1e3 * median(linear.laps[-last:]), "gib": peak}


def in_process(args: argparse.Namespace, implementation: str, kind: str, length: int) -> dict[str, float]:
    threads = 1 if kind == "decode" or args.clock == "cpu" else args.threads
    given = [args.model, implementation, kind, args.clock, str(length), str(args.hidden), str(threads)]
    done = subprocess.run([sys.executable, __file__, "--measure", *given], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(given)}: exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        names, numbers = sys.argv[2:6], map(int, sys.argv[6:9])
        print(json.dumps(measure(*names, *numbers)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="m3", help="of sparse_models.py")
    parser.add_argument("--prefill", type=int, nargs="*", default=[4096], help="tokens, with both")
    parser.add_argument("--alone", type=int, nargs="*", default=[32768], help="tokens of prefill with tessera alone")
    parser.add_argument(
        "--decode", type=int, nargs="*", default=[32768], help="tokens of context, with both, one thread"
    )
    parser.add_argument("--hidden", type=int, default=64, help="hidden size")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of one thread, on a machine that is busy")
    args = parser.parse_args()

    print("| what | sdpa: ms (of it projections), peak GiB | tessera | times faster (without projections) | memory |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for kind, lengths in (("prefill", args.prefill), ("prefill", args.alone), ("decode", args.decode)):
        for length in lengths:
            ours = in_process(args, "tessera", kind, length)
            theirs = None if lengths is args.alone else in_process(args, "sdpa", kind, length)
            print(f"| {kind} {length} | {figures(theirs)} | {figures(ours)} | {ratios(theirs, ours)} |", flush=True)


def figures(of: dict[str, float] | None) -> str:
    return "" if of is None else f"{of['ms']:.4g} ({of['linear_ms']:.3g}), {of['gib']:.2f}"


def ratios(theirs: dict[str, float] | None, ours: dict[str, float]) -> str:
    if theirs is None:
        return " | "
    bare = (theirs["ms"] - theirs["linear_ms"]) / (ours["ms"] - ours["linear_ms"])
    return f"{theirs['ms'] / ours['ms']:.1f} ({bare:.1f}) | 1/{theirs['gib'] / ours['gib']:.1f}"


if __name__ == "__main__":
    main()
