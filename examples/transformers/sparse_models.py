"""Models that were trained with sparse attention: tiny ones, and one layer with the heads of the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, PreTrainedModel
from transformers.models.minimax_m3_vl import configuration_minimax_m3_vl as m3_config
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as m3
from transformers.models.qwen4_exp import configuration_qwen4_exp as qwen4_config
from transformers.models.qwen4_exp import modeling_qwen4_exp as qwen4

VOCABULARY = 97


@dataclass(frozen=True)
class SparseModel:
    """What the scripts need of a model.

    Attributes:
        tiny: takes changes of its configuration; a causal language model in f32 with random weights, larger than at
            initialisation, so that attention is far from uniform.
        layer: takes a hidden size; a decoder of one layer in bf16 with the real heads and little else. Projections cost the
            same with every attention.
        attention: the module of `layer` whose time is the layer's attention: projections, indexer, cache, attention.
        fill: takes a cache of `layer` and a number of tokens; gives it random ones.
    """

    tiny: Callable[..., PreTrainedModel]
    layer: Callable[[int], PreTrainedModel]
    attention: Callable[[PreTrainedModel], torch.nn.Module]
    fill: Callable[[Cache, int], Any]


def enlarged(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    return model.eval()


def _m3_tiny(**changes: Any) -> PreTrainedModel:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_block_size": 16,
        "index_topk_blocks": 4,
        "dense_intermediate_size": 96,
        "intermediate_size": 48,
        "shared_intermediate_size": 48,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "max_position_embeddings": 1024,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    config = m3_config.MiniMaxM3VLTextConfig(**{**sizes, **changes})
    return enlarged(m3.MiniMaxM3VLForCausalLM._from_config(config, attn_implementation="eager"))


def _m3_layer(hidden: int) -> PreTrainedModel:
    torch.manual_seed(0)
    config = m3_config.MiniMaxM3VLTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=1,
        layer_types=["minimax_m3_sparse"],
        mlp_layer_types=["dense"],
        dense_intermediate_size=hidden,
        rope_parameters={"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return m3.MiniMaxM3VLTextModel._from_config(config, dtype=torch.bfloat16).eval()


def _m3_fill(cache: Cache, tokens: int) -> None:
    heads = torch.randn(2, 1, 4, tokens, 128, dtype=torch.bfloat16)
    cache.layers[0].update(heads[0], heads[1])
    cache.layers[0].update_index(torch.randn(1, 1, tokens, 128, dtype=torch.bfloat16))


def _qwen4_config(**changes: Any) -> qwen4_config.Qwen4ExpTextConfig:
    sizes = {
        "vocab_size": VOCABULARY,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "hc_count": 2,
        "hc_lowrank": 16,
        "indexer_kv_heads": 1,
        "indexer_compress_ratio": 4,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    return qwen4_config.Qwen4ExpTextConfig(**{**sizes, **changes})


def _qwen4_tiny(**changes: Any) -> PreTrainedModel:
    # Eight index heads: with four of them one random block in 16 scores 0, and the model's code leaves ties to chance.
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "indexer_n_heads": 8,
        "indexer_head_dim": 32,
        "indexer_budget": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    torch.manual_seed(0)
    config = _qwen4_config(**{**sizes, **changes})
    return enlarged(qwen4.Qwen4ExpForCausalLM._from_config(config, attn_implementation="eager"))


def _qwen4_layer(hidden: int) -> PreTrainedModel:
    torch.manual_seed(0)
    config = _qwen4_config(
        hidden_size=hidden,
        num_hidden_layers=1,
        layer_types=["indexed_attention"],
        num_attention_heads=24,
        num_key_value_heads=2,
        head_dim=256,
        indexer_n_heads=4,
        indexer_head_dim=128,
        indexer_budget=2048,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    )
    return qwen4.Qwen4ExpTextModel._from_config(config, dtype=torch.bfloat16).eval()


def _qwen4_fill(cache: Cache, tokens: int) -> None:
    layer = cache.layers[0]
    heads = torch.randn(2, 1, 2, tokens, 256, dtype=torch.bfloat16)
    layer.update(heads[0], heads[1])
    layer.update_indexer(torch.randn(1, tokens, 128, dtype=torch.bfloat16))
    layer.indexer_position_ids = torch.arange(tokens).expand(3, 1, -1)


MODELS = {
    "m3": SparseModel(_m3_tiny, _m3_layer, lambda model: model.layers[0].self_attn, _m3_fill),
    "qwen4": SparseModel(_qwen4_tiny, _qwen4_layer, lambda model: model.layers[0].self_attn, _qwen4_fill),
}
