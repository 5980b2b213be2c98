"""Tiny language models of transformers for spec/parity/families.lua: families.py DIR [PART OF A NAME]
Writes a folder for each, inputs, logits and greedy ids. "families.py DIR --spec" writes those marked so, with a few numbers
of each, for spec/models/families_spec.lua. "families.py DIR --fields [PART OF A NAME]" gives each field of decoders'
configs other values (all: ten minutes). Without the packages it says so and ends well."""
import json
import os
import re
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
import torch

try:
    import transformers as T
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"families: skipped, since there is no {missing.name} (pip install transformers)")
    sys.exit(3)
T.logging.set_verbosity_error()
T.utils.logging.disable_progress_bar()

folder, part = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
for_spec, for_fields = part == "--spec", part == "--fields"
if for_fields:
    part = sys.argv[3] if len(sys.argv) > 3 else ""
cases, spec = {}, {}


def made(name, t):
    """Weights by a formula, which the spec computes, too: of their places and the letters of their name."""
    at = 17
    for letter in name:
        at = (at * 31 + ord(letter)) % 65537
    k = torch.arange(t.numel(), dtype=torch.int64)
    x = ((k * 7919 + at) ** 2 % 65537).double() / 65537 - 0.5
    return (x if t.dim() > 1 or name.endswith("bias") else 1 + 0.6 * x).reshape(t.shape).float()


def filled(name, model):
    path = f"{folder}/{re.sub('[^a-zA-Z0-9]', '_', name)}"
    model.save_pretrained(path)
    weights = {key: made(key, t) for key, t in load_file(f"{path}/model.safetensors").items()}
    save_file(weights, f"{path}/model.safetensors", {"format": "pt"})
    kind = type(model)
    # Falcon's other attention adds the biases of ALiBi twice.
    attention = "sdpa" if "Falcon" in kind.__name__ else "eager"
    model = kind.from_pretrained(path, attn_implementation=attention).eval()
    return path, weights, model


def plain(t):
    return {"shape": list(t.shape), "data": [round(x, 6) for x in t.detach().double().reshape(-1).tolist()]}


def keep(name, case, weights):
    """For the spec: shapes of the first of each list of layers, and some of the numbers."""
    cases[name] = case
    if not for_spec:
        return
    shapes, size_of = {}, {key: "x".join(map(str, t.shape)) for key, t in weights.items()}
    for key in weights:  # "layer.#.weight": of as many layers as the text says behind "*"
        alike = re.sub(r"\.\d+\.", ".#.", key, count=1)
        layers = [x for x in weights if re.sub(r"\.\d+\.", ".#.", x, count=1) == alike]
        if alike != key and all(size_of.get(alike.replace("#", str(i))) == size_of[key] for i in range(len(layers))):
            shapes[alike] = f"{size_of[key]}*{len(layers)}"
        else:
            shapes[key] = size_of[key]
    assert sum(int(x.partition("*")[2] or 1) for x in shapes.values()) == len(weights), name
    shapes = " ".join(f"{key}={x}" for key, x in shapes.items())
    config = {k: v for k, v in json.load(open(f"{case['folder']}/config.json")).items() if v is not None}
    short = {"config": config, "shapes": shapes, "ids": case["ids"], "mask": case.get("mask"), "types": case.get("types"),
             "greedy": case.get("greedy"), "out": [{"shape": x["shape"], "tail": x["data"][-6:]} for x in case["out"]]}
    spec[name] = {key: v for key, v in short.items() if v is not None}


def wanted(name, is_spec):
    return is_spec if for_spec else part in name and (is_spec or not for_fields)


# Fields that are names, or that the other files say, and lists whose length another field says.
LEFT = set("""architectures model_type transformers_version dtype id2label label2id problem_type return_dict output_hidden_states
    output_attentions use_cache bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id vocab_size is_encoder_decoder
    chunk_size_feed_forward layer_types mlp_layer_types _name_or_path""".split())
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def others(v):
    """Other values of a field."""
    if isinstance(v, dict):
        if any(isinstance(x, dict) for x in v.values()):  # one for each type of layers
            return [{**v, k: x} for k in v for x in ({"rope_type": "default", "rope_theta": 77.0},
                                                     {"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0})]
        more = {k: v[k] for k in ("partial_rotary_factor",) if k in v} | {"rope_theta": 50.0}
        return [{**v, "rope_theta": 77.0}, *({**x, **more} for x in (
            {"rope_type": "linear", "factor": 2.5}, {"rope_type": "dynamic", "factor": 2.5}, YARN,
            {**YARN, "attention_factor": 0.8, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
            {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9},
            {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0})), *({**v, "partial_rotary_factor": x} for x in (0.5, 0.75))]
    if isinstance(v, bool):
        return [not v]
    if isinstance(v, int):
        return [x for x in (v * 2, v + 1, max(v - 1, 0), v // 2) if x != v]
    if isinstance(v, float):
        return [v * 1.7 + 0.1, 0.25]
    if isinstance(v, list):
        return [[0 if x else 1 for x in v]] if all(isinstance(x, int) for x in v) and v else []
    return [True, 3, 0.5, "relu"] if v is None else [x for x in ("relu", "gelu_new", "silu", "sigmoid") if x != v]


def varied(name, kind, cls, fields):
    """Cases of one family: a field each, with a value that transformers takes and computes numbers with."""
    config = getattr(T, kind + "Config")
    for key, old in sorted(config(**fields).to_dict().items()):
        for i, v in enumerate(others(old) if key not in LEFT else []):
            given = {k: x for k, x in fields.items() if config.attribute_map.get(k) != key}
            title = f"{name}: {key} = {json.dumps(v)}"
            try:
                path, _, model = filled(f"{name} {key} {i}", getattr(T, cls)(config(**{**given, key: v})))
                with torch.no_grad():
                    out = model((torch.arange(18).reshape(2, 9) * 7) % 36 + 4)
            except Exception:  # transformers has its own reasons
                continue
            out = out.logits if "logits" in out else out.last_hidden_state
            if out.isfinite().all():
                ids = ((torch.arange(18).reshape(2, 9) * 7) % 36 + 4).tolist()
                cases[title] = {"folder": path, "ids": ids, "out": [plain(out)], "may_refuse": True}


def encoder(name, kind, head, is_spec=True, **fields):
    name = f"{name} {head}"
    if not wanted(name, is_spec):
        return
    if for_fields:
        return  # of decoders alone
    config = getattr(T, kind + "Config")(**{**dict(vocab_size=40, max_position_embeddings=40), **fields})
    path, weights, model = filled(name, getattr(T, kind + head)(config))
    ids = (torch.arange(18).reshape(2, 9) * 7) % 36 + 4
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    ids[1, 6:] = config.pad_token_id
    types = None if "DistilBert" in kind or "Modern" in kind else torch.arange(18).reshape(2, 9) % config.type_vocab_size
    with torch.no_grad():
        out = model(ids, attention_mask=mask, **({} if types is None else {"token_type_ids": types}))
    case = {"folder": path, "ids": ids.tolist(), "mask": mask.tolist()}
    if types is not None:
        case["types"] = types.tolist()
    names = [x for x in ("logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output") if out.get(x) is not None]
    case["out"] = [plain(out[x]) for x in names]
    keep(name, case, weights)


small = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
for head in ("Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM"):
    labels = {} if head == "ForQuestionAnswering" else {"num_labels": 3}
    encoder("bert", "Bert", head, hidden_act="gelu_new", **small, **labels)
    encoder("roberta", "Roberta", head, hidden_act="silu", type_vocab_size=1, layer_norm_eps=1e-5, **small, **labels)
    encoder("xlm", "XLMRoberta", head, False, type_vocab_size=1, pad_token_id=3, **small, **labels)
    encoder("camembert", "Camembert", head, False, type_vocab_size=1, **small, **labels)
    encoder("distilbert", "DistilBert", head, dim=16, hidden_dim=24, n_layers=2, n_heads=2, activation="relu", **labels)
    encoder("electra", "Electra", head, embedding_size=8, hidden_act="relu", **small, **labels)
    encoder("electra equal", "Electra", head, False, embedding_size=16, **small, **labels)
    encoder("albert", "Albert", head, False, embedding_size=8, **small, **labels)
    encoder("albert groups", "Albert", head, embedding_size=16, num_hidden_groups=2, inner_group_num=2, hidden_act="mish",
            **{**small, "num_hidden_layers": 4}, **labels)
    modern = {**small, "num_hidden_layers": 4, "local_attention": 6, "pad_token_id": 0, **labels}
    encoder("modernbert", "ModernBert", head, **modern)
    encoder("modernbert with biases", "ModernBert", head, False, classifier_pooling="mean", norm_bias=True, mlp_bias=True,
            attention_bias=True, classifier_bias=True, decoder_bias=False, hidden_activation="silu", **modern)
encoder("modernbert untied", "ModernBert", "ForMaskedLM", False, tie_word_embeddings=False, **modern)
for act in ("gelu_10", "quick_gelu", "laplace", "relu2", "relu6", "leaky_relu", "linear", "sigmoid", "tanh", "gelu_fast",
            "gelu_accurate", "gelu_python", "swish"):
    encoder(f"bert {act}", "Bert", "Model", False, hidden_act=act, **small)
encoder("bert untied", "Bert", "ForMaskedLM", False, tie_word_embeddings=False, **small)



def decoder(name, kind, is_spec=True, **fields):
    if not wanted(name, is_spec):
        return
    sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=0, eos_token_id=1)
    sizes = {key: x for key, x in {**sizes, **fields}.items() if x != "-"}
    if for_fields:
        return varied(name, kind, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"), sizes)
    config = getattr(T, kind + "Config")(**sizes)
    path, weights, model = filled(name, getattr(T, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))(config))
    ids = (torch.arange(18).reshape(2, 9) * 7) % 36 + 4
    with torch.no_grad():
        logits = model(ids).logits
    greedy = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, eos_token_id=None)
    keep(name, {"folder": path, "ids": ids.tolist(), "out": [plain(logits)], "greedy": greedy.tolist()}, weights)


def rope(partial=None, **more):
    return dict(rope_parameters={"rope_type": "default", "rope_theta": 1000.0, **({} if partial is None else
                                 {"partial_rotary_factor": partial}), **more})


no_kv = dict(num_key_value_heads="-")
gptj = dict(hidden_size="-", intermediate_size="-", num_hidden_layers="-", num_attention_heads="-", max_position_embeddings="-",
            n_embd=16, n_layer=2, n_head=2, n_positions=64, **no_kv)
bloom = dict(n_layer=2, n_head=4, num_hidden_layers="-", num_attention_heads="-", intermediate_size="-", max_position_embeddings="-", **no_kv)
opt = dict(ffn_dim=24, intermediate_size="-", word_embed_proj_dim=16, **no_kv)
falcon = dict(intermediate_size="-", ffn_hidden_size=24, **no_kv)
types = ["sliding_attention", "full_attention"]
decoder("gpt_neox", "GPTNeoX", **no_kv, num_attention_heads=2, **rope(0.5))
decoder("gpt_neox behind each other", "GPTNeoX", False, **no_kv, use_parallel_residual=False, attention_bias=False, hidden_act="gelu_fast", num_attention_heads=2)
decoder("opt", "OPT", **opt)
decoder("opt of 350m", "OPT", **{**opt, "word_embed_proj_dim": 8}, do_layer_norm_before=False, activation_function="gelu")
decoder("opt without biases", "OPT", False, **opt, enable_bias=False, layer_norm_elementwise_affine=False, _remove_final_layer_norm=True)
decoder("phi", "Phi", **rope(0.5))
decoder("phi with norms", "Phi", False, qk_layernorm=True, num_attention_heads=2, hidden_act="relu")
decoder("stablelm", "StableLm", **rope(0.5))
decoder("stablelm with norms", "StableLm", qk_layernorm=True, use_qkv_bias=True, use_parallel_residual=True, **rope(0.5))
decoder("starcoder2", "Starcoder2", sliding_window=5)
decoder("starcoder2 without biases", "Starcoder2", False, use_bias=False, tie_word_embeddings=False)
decoder("olmo", "Olmo", clip_qkv=0.5)
decoder("olmo with biases", "Olmo", False, attention_bias=True)
decoder("olmo2", "Olmo2")
decoder("olmo3", "Olmo3", sliding_window=5, layer_types=types)
decoder("olmo3 by default", "Olmo3", False, sliding_window=5, num_hidden_layers=5)
decoder("granite", "Granite", embedding_multiplier=3.0, logits_scaling=0.5, residual_multiplier=0.7, attention_multiplier=0.6)
decoder("granite plain", "Granite", False, attention_bias=True, mlp_bias=True)
decoder("smollm3", "SmolLM3", num_hidden_layers=4)
decoder("smollm3 with windows", "SmolLM3", False, no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=5)
decoder("cohere", "Cohere", logit_scale=0.5)
decoder("cohere with norms", "Cohere", use_qk_norm=True, attention_bias=True)
decoder("cohere2", "Cohere2", sliding_window=5, layer_types=types)
decoder("cohere2 by default", "Cohere2", False, sliding_window=5, num_hidden_layers=5)
decoder("glm", "Glm", head_dim=8, **rope(0.5))
decoder("glm4", "Glm4", head_dim=8, attention_bias=False)
decoder("nemotron", "Nemotron")
decoder("nemotron with biases", "Nemotron", False, attention_bias=True, mlp_bias=True, hidden_act="silu")
decoder("arcee", "Arcee", attention_bias=True)
decoder("arcee with biases", "Arcee", False, mlp_bias=True)
decoder("helium", "Helium", head_dim=4)
decoder("helium with biases", "Helium", False, head_dim=4, attention_bias=True, mlp_bias=True)
decoder("seed_oss", "SeedOss", head_dim=8)
decoder("seed_oss with biases", "SeedOss", False, head_dim=8, attention_out_bias=True, mlp_bias=True)
decoder("exaone4", "Exaone4", sliding_window=5, layer_types=types)
decoder("exaone4 without windows", "Exaone4", False, sliding_window=None, layer_types=["full_attention"] * 2)
decoder("ministral", "Ministral", sliding_window=5, head_dim=4, layer_types=types)
decoder("ministral by default", "Ministral", False, sliding_window=5, head_dim=8)
decoder("falcon", "Falcon", **falcon)
decoder("falcon of many heads", "Falcon", False, **falcon, multi_query=False, bias=True)
decoder("falcon of 40b", "Falcon", **falcon, new_decoder_architecture=True, num_kv_heads=2)
decoder("falcon of 11b", "Falcon", False, **falcon, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1)
decoder("falcon of 1b", "Falcon", **falcon, alibi=True, multi_query=False, bias=True, parallel_attn=False)
decoder("falcon with odd slopes", "Falcon", False, **{**falcon, "hidden_size": 24}, alibi=True, num_attention_heads=6)
decoder("bloom", "Bloom", **bloom)
decoder("bloom of six heads", "Bloom", False, **{**bloom, "n_head": 6, "hidden_size": 24})
decoder("gptj", "GPTJ", **gptj, rotary_dim=4)
decoder("phi tied", "Phi", False, tie_word_embeddings=True)
decoder("gemma untied", "Gemma", False, tie_word_embeddings=False, head_dim=4)
decoder("gptj tied", "GPTJ", False, **gptj, rotary_dim=8, n_inner=20, tie_word_embeddings=True)

decoder("ministral3", "Ministral3", head_dim=8, rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
        "original_max_position_embeddings": 4, "max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3})
gpt2 = {**gptj, "n_head": 4}
decoder("gpt2", "GPT2", False, **gpt2)
decoder("gpt2 untied", "GPT2", **gpt2, tie_word_embeddings=False, n_inner=20, activation_function="relu", layer_norm_epsilon=0.01)
decoder("gpt2 scaled", "GPT2", **gpt2, scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False, activation_function="gelu")
decoder("gpt2 scaled by layers", "GPT2", False, **gpt2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True)
decoder("mixtral", "Mixtral", num_local_experts=4, sliding_window=5)
decoder("mixtral without windows", "Mixtral", False, num_local_experts=3, num_experts_per_tok=3)
decoder("qwen3_moe", "Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, head_dim=4, num_hidden_layers=3,
        mlp_only_layers=[1], norm_topk_prob=True)
decoder("qwen3_moe with windows", "Qwen3Moe", False, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, head_dim=4,
        decoder_sparse_step=2, sliding_window=5, use_sliding_window=True, attention_bias=True)
decoder("qwen2_moe", "Qwen2Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=10)
decoder("qwen2_moe without biases", "Qwen2Moe", False, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
        shared_expert_intermediate_size=10, qkv_bias=False, use_sliding_window=True, sliding_window=5, max_window_layers=1)
decoder("olmoe", "Olmoe", num_experts=4, num_experts_per_tok=2, clip_qkv=0.5)
many = dict(n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, n_shared_experts=2, moe_intermediate_size=12,
            first_k_dense_replace=1, num_hidden_layers=3)
latent = dict(num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=6, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, **many)
long = dict(rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 0.9,
                             "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1})
decoder("deepseek_v3", "DeepseekV3", **latent, **long)
decoder("deepseek_v3 of one group", "DeepseekV3", False, **{**latent, "q_lora_rank": None, "v_head_dim": 12, "n_group": 1,
        "topk_group": 1}, attention_bias=True, norm_topk_prob=False, rope_interleave=False)
decoder("deepseek_v2", "DeepseekV2", topk_method="group_limited_greedy", routed_scaling_factor=2.0, **latent)
decoder("deepseek_v2 lite", "DeepseekV2", False, topk_method="greedy", **{**latent, "q_lora_rank": None}, **long)
decoder("glm4_moe", "Glm4Moe", head_dim=8, use_qk_norm=True, attention_bias=True, routed_scaling_factor=2.5, **many)
decoder("glm4_moe without norms", "Glm4Moe", False, head_dim=8, **many)
mamba = dict(num_attention_heads="-", num_key_value_heads="-", max_position_embeddings="-", intermediate_size="-", state_size=4)
decoder("mamba", "Mamba", **mamba)
decoder("mamba untied", "Mamba", False, use_bias=True, use_conv_bias=False, tie_word_embeddings=False, conv_kernel=3,
        time_step_rank=5, residual_in_fp32=False, **mamba)
decoder("gpt_oss", "GptOss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=5, num_hidden_layers=3,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "truncate": False,
                         "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1})
decoder("gpt_oss without yarn", "GptOss", False, head_dim=4, num_local_experts=3, num_experts_per_tok=3, swiglu_limit=1.0,
        sliding_window=64, **rope())

with open(f"{folder}/cases.json", "w") as f:
    json.dump(cases, f)
if for_spec:
    with open(os.path.join(os.path.dirname(__file__), "..", "models", "fixtures", "families.json"), "w") as f:
        lines = (f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in spec.items())
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
