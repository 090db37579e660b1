"""The models that make_checkpoint.py writes: a config.json object and a list of tensors each.

Names, shapes and configuration keys follow the families' real checkpoints; the sizes are small. `qwen3` and `mimo`
load and generate in real engines.
"""

import math
from typing import NamedTuple

import safetensors_writer as st
import values


class Dims(NamedTuple):
    """Sizes of a decoder."""

    hidden: int = 128
    intermediate: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    vocab: int = 512

    def config(self):
        return {
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocab, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 256,
            "initializer_range": 0.02, "use_sliding_window": False, "attention_dropout": 0.0,
        }


class Model(NamedTuple):
    """`mtp` are the tensors of the draft, `tensors` all others."""

    config: dict
    tensors: list
    mtp: list


class Random:
    """Makes tensors of one dtype with content of their own; with scales, projections are 8-bit with a scale each."""

    def __init__(self, seed, dtype, scales=False):
        self.seed, self.dtype, self.scales = seed, dtype, scales

    def one(self, name, shape, dtype=None):
        dtype = dtype or self.dtype
        size = st.nbytes(dtype, shape)
        return st.Tensor(name, dtype, tuple(shape), lambda: values.tensor_bytes(dtype, size, self.seed, name))

    def weight(self, name, shape):
        """A projection: one tensor, or two where there are scales (blocks of 128 x 128)."""
        if not self.scales:
            return [self.one(name, shape)]
        blocks = [math.ceil(n / 128) for n in shape]
        return [self.one(name, shape, "F8_E4M3"), self.one(name + "_scale_inv", blocks, "F32")]


def attention(make, prefix, d, bias):
    out = []
    for part, rows in (("q", d.heads), ("k", d.kv_heads), ("v", d.kv_heads)):
        out += make.weight(f"{prefix}.{part}_proj.weight", (rows * d.head_dim, d.hidden))
        if bias:
            out.append(make.one(f"{prefix}.{part}_proj.bias", (rows * d.head_dim,)))
    return out + make.weight(f"{prefix}.o_proj.weight", (d.hidden, d.heads * d.head_dim))


def mlp(make, prefix, d):
    return [*make.weight(f"{prefix}.gate_proj.weight", (d.intermediate, d.hidden)),
            *make.weight(f"{prefix}.up_proj.weight", (d.intermediate, d.hidden)),
            *make.weight(f"{prefix}.down_proj.weight", (d.hidden, d.intermediate))]


def block(make, prefix, d, bias=True):
    return [make.one(f"{prefix}.input_layernorm.weight", (d.hidden,)),
            make.one(f"{prefix}.post_attention_layernorm.weight", (d.hidden,)),
            *attention(make, f"{prefix}.self_attn", d, bias), *mlp(make, f"{prefix}.mlp", d)]


def body(make, d, bias=True):
    out = [make.one("model.embed_tokens.weight", (d.vocab, d.hidden))]
    for i in range(d.layers):
        out += block(make, f"model.layers.{i}", d, bias)
    return [*out, make.one("model.norm.weight", (d.hidden,)), make.one("lm_head.weight", (d.vocab, d.hidden))]


def config(d, make, model_type, architecture, **keys):
    dtypes = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    out = {"architectures": [architecture], "model_type": model_type, "torch_dtype": dtypes[make.dtype], **d.config(), **keys}
    if make.scales:
        out["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                      "weight_block_size": [128, 128]}
    return out


def mimo_mtp(make, d):
    p = "model.mtp_layers.0"
    return [make.one(f"{p}.token_layernorm.weight", (d.hidden,)), make.one(f"{p}.hidden_layernorm.weight", (d.hidden,)),
            *make.weight(f"{p}.input_proj.weight", (d.hidden, 2 * d.hidden)),
            make.one(f"{p}.final_layernorm.weight", (d.hidden,)), *block(make, p, d)]


def mimo_config(d, make):
    return config(d, make, "qwen2", "MiMoForCausalLM", num_nextn_predict_layers=1, attention_bias=True)


def demo(make, size):
    """A MiMo of about `size` bytes: the widest that leaves at least half of them to decoder layers."""
    for hidden in (4096, 2048, 1024, 512, 256, 128, 64):
        d = Dims(hidden, 11 * hidden // 4, 1, hidden // 32, max(1, hidden // 128), 32, 32 * hidden)
        layer = sum(t.nbytes for t in block(make, "x", d))
        outside = sum(t.nbytes for t in [*body(make, d._replace(layers=0)), *mimo_mtp(make, d)])
        if outside * 2 <= size:
            break
    d = d._replace(layers=max(1, round((size - outside) / layer)))
    return Model(mimo_config(d, make), body(make, d), mimo_mtp(make, d))


def deepseek(make, layers, decoy):
    """MTP as an extra decoder layer behind the last; the decoy is a layer whose number begins with the same digits."""
    d = Dims(layers=layers)
    p = f"model.layers.{layers}"
    mtp = [make.one(f"{p}.embed_tokens.weight", (d.vocab, d.hidden)), make.one(f"{p}.enorm.weight", (d.hidden,)),
           make.one(f"{p}.hnorm.weight", (d.hidden,)), *make.weight(f"{p}.eh_proj.weight", (d.hidden, 2 * d.hidden)),
           *block(make, p, d, bias=False), make.one(f"{p}.shared_head.norm.weight", (d.hidden,)),
           make.one(f"{p}.shared_head.head.weight", (d.vocab, d.hidden))]
    tensors = body(make, d, bias=False)
    if decoy:
        tensors += block(make, f"model.layers.{layers}0", d, bias=False)
    return Model(config(d, make, "deepseek_v3", "DeepseekV3ForCausalLM", num_nextn_predict_layers=1), tensors, mtp)


def qwen3_next(make, layers):
    d = Dims(layers=layers)
    mtp = [*make.weight("mtp.fc.weight", (d.hidden, 2 * d.hidden)), make.one("mtp.norm.weight", (d.hidden,)),
           make.one("mtp.pre_fc_norm_hidden.weight", (d.hidden,)),
           make.one("mtp.pre_fc_norm_embedding.weight", (d.hidden,)), *block(make, "mtp.layers.0", d, bias=False)]
    return Model(config(d, make, "qwen3_next", "Qwen3NextForCausalLM", num_nextn_predict_layers=1),
                 body(make, d, bias=False), mtp)


class Exact:
    """Makes F32 tensors that a real engine computes with. `live` false makes a block's outputs zero, so that the next
    token depends on the current one alone and an MTP layer can predict it exactly."""

    dtype, scales = "F32", False

    def __init__(self, seed, live, head_spread=1.7):
        self.seed, self.live, self.head_spread = seed, live, head_spread

    def one(self, name, shape):
        count = math.prod(shape)
        if not self.live and name.endswith(("model.norm.weight", "token_layernorm.weight", "final_layernorm.weight")):
            return st.Tensor(name, "F32", shape, values.constant_f32(count, 1.0))  # the draft's path and the target's agree
        if "norm" in name:
            return st.Tensor(name, "F32", shape, values.uniform_f32(count, 0.1, self.seed, name, centre=1.0))
        dead = name.endswith(".bias") or (not self.live and name.endswith(("o_proj.weight", "down_proj.weight")))
        if dead:
            return st.Tensor(name, "F32", shape, bytes(4 * count))
        spread = self.head_spread if name.endswith(("embed_tokens.weight", "lm_head.weight")) else 0.14
        return st.Tensor(name, "F32", shape, lambda: values.uniform_f32(count, spread, self.seed, name))

    def weight(self, name, shape):
        return [self.one(name, shape)]


def qwen3(seed):
    d, make = Dims(), Exact(seed, live=True)
    tensors = body(make, d, bias=False)
    for i in range(d.layers):
        tensors += [make.one(f"model.layers.{i}.self_attn.{x}_norm.weight", (d.head_dim,)) for x in "qk"]
    return Model(config(d, make, "qwen3", "Qwen3ForCausalLM", attention_bias=False), tensors, [])


def mimo(seed, draft_seed=None):
    """Every token the MTP layer drafts is the target's own next token; with a draft_seed its weights are other ones,
    and none is."""
    d, make = Dims(), Exact(seed, live=False)
    if draft_seed is None:
        mtp = [t._replace(data=values.zero_then_identity_f32(d.hidden)) if t.name.endswith("input_proj.weight") else t
               for t in mimo_mtp(make, d)]
    else:
        mtp = [t._replace(data=values.uniform_f32(math.prod(t.shape), 0.8, draft_seed, t.name))
               for t in mimo_mtp(make, d)]
    return Model(mimo_config(d, make), body(make, d), mtp)


def sharded_rank(make, d, rank, tp):
    """What one rank of `tp` holds in an engine's own names: fused projections, its part of each."""
    make = Random(f"{make.seed}/rank{rank}", make.dtype)
    out = [make.one("model.embed_tokens.weight", (d.vocab // tp, d.hidden))]
    for i in range(d.layers):
        p = f"model.layers.{i}"
        qkv = (d.heads // tp + 2 * max(1, d.kv_heads // tp)) * d.head_dim
        out += [make.one(f"{p}.input_layernorm.weight", (d.hidden,)),
                make.one(f"{p}.self_attn.qkv_proj.weight", (qkv, d.hidden)),
                make.one(f"{p}.self_attn.o_proj.weight", (d.hidden, d.heads // tp * d.head_dim)),
                make.one(f"{p}.post_attention_layernorm.weight", (d.hidden,)),
                make.one(f"{p}.mlp.gate_up_proj.weight", (2 * d.intermediate // tp, d.hidden)),
                make.one(f"{p}.mlp.down_proj.weight", (d.hidden, d.intermediate // tp))]
    return [*out, make.one("model.norm.weight", (d.hidden,)), make.one("lm_head.weight", (d.vocab // tp, d.hidden))]
