"""Attention implementation "tessera" for Hugging Face transformers.

    import tessera.integrations.transformers as hf

    hf.enable(selector="mass", budget=1024)  # options for models that were trained with dense attention
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tessera").eval()
    with torch.no_grad():
        model.generate(**inputs)

It serves decoders with causal attention and grouped-query heads (multi-head and multi-query included) on the CPU: prefill,
chunked prefill and decode, dynamic and static caches, batches padded on the left or right, beam search, assisted decoding.

Calls with at most `dense_threshold` keys are dense. Beyond, a prefill is block-sparse: one list of key blocks per `block_q`
queries and KV head. A list is chosen from all its queries, so an earlier query profits from what a later one of the same
`block_q` chooses. Decode, that is fewer than `block_q` new tokens behind cached ones, stays dense and exact unless
`decode="sparse"`.

Models that were trained with sparse attention bring their own selection, which the options do not change: the indexer and
the attention of MiniMax-M3 run through `msa_select` and `msa_sparse_decode_attention`, those of Qwen4-Exp through
`qsa_select` and `qsa_sparse_attention`, with caches that grow in place. For that `enable` replaces forwards in the models'
code, for this implementation only, and registers a cache layer, which holds the same for all; `disable` restores both.
docs/transformers.md has the details.

Padding is cut from each request before anything else, and blocks are counted from its first real token: a padded batch
gives each request what it gets alone. Rows of padding are 0.

What cannot be honoured is refused with NotImplementedError, never ignored: masks other than causal with padding on the
sides, sliding windows, dropout, soft-capping, attention sinks, position biases, output_attentions, gradients. Attention that
is not causal (`is_causal=False`, such as a vision tower's) goes to the framework's own `sdpa`.
"""

from tessera.integrations.transformers._options import Options, disable, enable, options
from tessera.integrations.transformers._stats import Stats, Totals, collect

__all__ = ["Options", "Stats", "Totals", "collect", "disable", "enable", "options"]
