"""Tiny language models in GGUF files of llama.cpp's names and fields, for spec/models/gguf_spec.lua: gguf_fixtures.py writes
fixtures/gguf.json: for each the fields, the shapes of tensors, whose numbers a formula gives, and what transformers computes."""
import json
import math
import os
import re
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
import gguf
import torch
import transformers as T

T.logging.set_verbosity_error()
A = gguf.MODEL_ARCH
G = gguf.ExpertGatingFuncType
cases = {}


def made(name, shape):
    """The numbers of a tensor by its places and the letters of its name, as the spec makes them."""
    at = 17
    for letter in name:
        at = (at * 31 + ord(letter)) % 65537
    k = torch.arange(math.prod(shape), dtype=torch.int64)
    x = ((k * 7919 + at) ** 2 % 65537).double() / 65537 - 0.5
    is_norm = len(shape) == 1 and not name.endswith("bias") and "sinks" not in name or "_norm." in name and not name.endswith("bias")
    return (1 + 0.6 * x if is_norm else x).reshape(shape).float()


class Fields(gguf.GGUFWriter):
    """The fields that a converter adds, not written."""

    def __init__(self, arch):
        super().__init__("/dev/null", arch)

    def all(self):
        return {k: v.value for part in self.kv_data for k, v in part.items() if not k.startswith("GGUF")}


def permute(w, n):
    return w.reshape(n, 2, w.shape[0] // n // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def make(name, kind, arch, fields, meta=lambda g, c: None, tf=None, less=None, more=None):
    """tf: what a converter does to the weights; less: norms that the file has 1 more of; more: tensors that come to them."""
    sizes = dict(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=0, eos_token_id=1)
    sizes = {k: v for k, v in {**sizes, **fields}.items() if v != "-"}
    c = getattr(T, kind + "Config")(**sizes)
    c._attn_implementation = "sdpa" if "Falcon" in kind else "eager"
    m = getattr(T, kind + "ForCausalLM")(c).eval()
    own = [(k, t) for k, t in m.state_dict().items() if not (k == "lm_head.weight" and c.tie_word_embeddings)]
    sd, at = {}, 0  # where each number comes from
    for k, t in own:
        sd[k] = torch.arange(at, at + t.numel()).reshape(t.shape)
        at += t.numel()
    sd = apart(sd, c)
    if tf:
        sd = tf(sd, c)
    names = gguf.get_tensor_name_map(arch, c.num_hidden_layers)
    numbers, shapes = torch.zeros(at, dtype=torch.float32), {}
    for k, places in sd.items():
        k = k.replace("e_score_correction_bias", "e_score_correction.bias")
        if arch == A.BLOOM:
            k = k.removeprefix("transformer.")
        to = names.get_name(k, try_suffixes=(".weight", ".bias"))
        assert to, k
        places = places.squeeze() if places.dim() > 1 else places
        shapes[to] = list(places.shape)
        x = made(to, shapes[to])
        numbers[places.reshape(-1)] = (x - 1 if less and re.search(less, k) else x).reshape(-1)
    at = 0
    with torch.no_grad():
        for k, t in own:
            t.copy_(numbers[at:at + t.numel()].reshape(t.shape))
            at += t.numel()
        ids = (torch.arange(18).reshape(2, 9) * 7) % 36 + 4
        logits = m(ids).logits.reshape(-1)
    g = Fields(gguf.MODEL_ARCH_NAMES[arch])
    g.add_block_count(c.num_hidden_layers)
    g.add_context_length(c.max_position_embeddings if hasattr(c, "max_position_embeddings") else 64)
    g.add_embedding_length(c.hidden_size)
    if getattr(c, "intermediate_size", None) is not None:
        g.add_feed_forward_length(c.intermediate_size)
    g.add_head_count(c.num_attention_heads)
    if getattr(c, "num_key_value_heads", None) and not kind.startswith("Deepseek"):
        g.add_head_count_kv(c.num_key_value_heads)
    if getattr(c, "head_dim", None) and not kind.startswith("Deepseek"):
        g.add_key_length(c.head_dim)
        g.add_value_length(c.head_dim)
    if getattr(c, "rms_norm_eps", None):
        g.add_layer_norm_rms_eps(c.rms_norm_eps)
    for e in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"):
        if getattr(c, e, None):
            g.add_layer_norm_eps(getattr(c, e))
    rp = getattr(c, "rope_parameters", None) or {}
    rp = rp["full_attention"] if isinstance(rp.get("full_attention"), dict) else rp
    if rp.get("rope_theta"):
        g.add_rope_freq_base(rp["rope_theta"])
    if rp.get("rope_type") == "yarn":
        g.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        g.add_rope_scaling_factor(rp["factor"])
        g.add_rope_scaling_orig_ctx_len(rp["original_max_position_embeddings"])
    if getattr(c, "num_experts_per_tok", None):
        g.add_expert_used_count(c.num_experts_per_tok)
    if kind in ("Mixtral", "GptOss", "Qwen2Moe", "Qwen3Moe", "Olmoe"):
        g.add_expert_count(getattr(c, "num_local_experts", None) or c.num_experts)
    if getattr(c, "n_group", None):
        g.add_expert_group_count(c.n_group)
        g.add_expert_group_used_count(c.topk_group)
    meta(g, c)
    cases[name] = {"fields": {k: (int(v) if isinstance(v, int) and not isinstance(v, bool) else v) for k, v in g.all().items()},
                   "shapes": shapes, "more": more, "ids": ids.tolist(), "tail": [round(x, 6) for x in logits[-6:].tolist()]}


def apart(sd, c):
    """Experts, which transformers has in one, as files of safetensors name them, in one."""
    r = {}
    for k, t in sd.items():
        both = re.match(r"(.*\.experts)\.gate_up_proj$", k)
        down = re.match(r"(.*\.experts)\.down_proj$", k)
        if both and c.model_type != "gpt_oss":
            half = t.shape[1] // 2
            r[both[1] + ".gate_proj.weight"], r[both[1] + ".up_proj.weight"] = t[:, :half], t[:, half:]
        elif down and c.model_type != "gpt_oss":
            r[down[1] + ".down_proj.weight"] = t
        else:
            r[k] = t
    return r


def qk(sd,c):
    r={}
    for k,t in sd.items():
        if re.search(r"q_proj\.(weight|bias)$",k): t=permute(t,c.num_attention_heads)
        if re.search(r"k_proj\.(weight|bias)$",k): t=permute(t,c.num_key_value_heads)
        r[k]=t
    return r
moe=dict(num_experts=4,num_experts_per_tok=2,moe_intermediate_size=32)
make("qwen2moe","Qwen2Moe",A.QWEN2MOE,dict(shared_expert_intermediate_size=32,**moe),
     lambda g,c:(g.add_expert_feed_forward_length(32),g.add_expert_shared_feed_forward_length(32)))
make("qwen3moe","Qwen3Moe",A.QWEN3MOE,dict(head_dim=16,norm_topk_prob=True,**moe),lambda g,c:g.add_expert_feed_forward_length(32))
make("olmoe","Olmoe",A.OLMOE,dict(num_experts=4,num_experts_per_tok=2,rms_norm_eps=1e-5),)
make("mixtral","Mixtral",A.LLAMA,dict(num_local_experts=4,num_experts_per_tok=2,rms_norm_eps=1e-5),tf=qk)
def kvb(sd,c):
    r={}
    for k,t in sd.items():
        if k.endswith("kv_b_proj.weight"):
            t=t.view(c.num_attention_heads,c.qk_nope_head_dim+c.v_head_dim,t.shape[-1])
            a,b=torch.split(t,[c.qk_nope_head_dim,c.v_head_dim],dim=1)
            r[k.replace("kv_b_proj","k_b_proj")]=a.transpose(1,2); r[k.replace("kv_b_proj","v_b_proj")]=b
        else: r[k]=t
    return r
many=dict(n_routed_experts=8,num_experts_per_tok=3,n_group=4,topk_group=2,n_shared_experts=2,moe_intermediate_size=32,first_k_dense_replace=1,num_hidden_layers=3)
latent=dict(num_key_value_heads=4,q_lora_rank=16,kv_lora_rank=32,qk_nope_head_dim=6,qk_rope_head_dim=4,v_head_dim=5,**many)
long=dict(rope_parameters={"rope_type":"yarn","rope_theta":1000.0,"factor":4.0,"mscale":0.9,"mscale_all_dim":0.9,"original_max_position_embeddings":16,"beta_fast":32,"beta_slow":1})
def ds(g,c,old=False,gate=None):
    g.add_leading_dense_block_count(c.first_k_dense_replace); g.add_vocab_size(40)
    if c.q_lora_rank: g.add_q_lora_rank(c.q_lora_rank)
    g.add_kv_lora_rank(c.kv_lora_rank)
    if old: g.add_head_count_kv(4); g.add_key_length(10); g.add_value_length(5)
    else:
        g.add_head_count_kv(1); g.add_key_length(c.kv_lora_rank+4); g.add_value_length(c.kv_lora_rank); g.add_key_length_mla(10); g.add_value_length_mla(5)
    g.add_expert_feed_forward_length(32); g.add_expert_count(8); g.add_expert_shared_count(2)
    g.add_expert_weights_scale(c.routed_scaling_factor)
    if getattr(c,"norm_topk_prob",None): g.add_expert_weights_norm(True)
    if gate: g.add_expert_gating_func(gate)
    g.add_rope_dimension_count(4)
    if c.rope_parameters.get("mscale_all_dim"): g.add_rope_scaling_yarn_log_mul(0.1*c.rope_parameters["mscale_all_dim"])
make("deepseek3","DeepseekV3",A.DEEPSEEK2,dict(**latent,**long),lambda g,c:ds(g,c,gate=G.SIGMOID),tf=kvb)
make("deepseek2","DeepseekV2",A.DEEPSEEK2,dict(topk_method="group_limited_greedy",routed_scaling_factor=2.0,**latent),lambda g,c:ds(g,c),tf=kvb)
make("deepseek2_old_lite","DeepseekV2",A.DEEPSEEK2,dict(topk_method="greedy",**{**latent,"q_lora_rank":None,"n_group":1,"topk_group":1},**long),lambda g,c:ds(g,c,old=True))
def glmmoe(g,c):
    g.add_rope_dimension_count(c.head_dim//2); g.add_expert_count(8); g.add_expert_feed_forward_length(32); g.add_expert_shared_count(2); g.add_leading_dense_block_count(1)
    g.add_expert_gating_func(G.SIGMOID); g.add_expert_weights_scale(c.routed_scaling_factor); g.add_expert_weights_norm(True); g.add_nextn_predict_layers(0)
make("glm4moe","Glm4Moe",A.GLM4_MOE,dict(head_dim=16,use_qk_norm=True,attention_bias=True,routed_scaling_factor=2.5,**many),glmmoe)
make("glm4","Glm4",A.GLM4,dict(head_dim=16,attention_bias=True),lambda g,c:g.add_rope_dimension_count(8))
def oss(sd,c):
    r={}
    for k,t in sd.items():
        for a in ("gate_up_proj","down_proj"):
            if k.endswith(a) :
                t=t.transpose(1,2); base=k[:-len(a)]
                if a=="down_proj": r[base+"down_proj.weight"]=t
                else: r[base+"gate_proj.weight"]=t[:,::2]; r[base+"up_proj.weight"]=t[:,1::2]
                break
            if k.endswith(a+"_bias"):
                base=k[:-len(a)-5]
                if a=="down_proj": r[base+"down_proj.bias"]=t
                else: r[base+"gate_proj.bias"]=t[:,::2]; r[base+"up_proj.bias"]=t[:,1::2]
                break
        else:
            r[k+".weight" if k.endswith("sinks") else k]=t
    return r
make("gpt_oss","GptOss",A.GPT_OSS,dict(head_dim=8,num_local_experts=4,num_experts_per_tok=2,sliding_window=5,num_hidden_layers=3,rope_parameters={"rope_type":"yarn","rope_theta":1000.0,"factor":4.0,"truncate":True,"original_max_position_embeddings":16,"beta_fast":32,"beta_slow":1}),lambda g,c:(g.add_sliding_window(5),g.add_expert_feed_forward_length(64)),tf=oss)
make("olmo","Olmo",A.OLMO,dict(clip_qkv=0.5),lambda g,c:(g.add_layer_norm_eps(1e-5),g.add_clamp_kqv(0.5)),tf=qk)
make("olmo2","Olmo2",A.OLMO2,dict())
ty=["sliding_attention","full_attention"]
make("olmo3","Olmo3",A.OLMO2,dict(sliding_window=5,layer_types=ty),lambda g,c:(g.add_sliding_window(5),g.add_sliding_window_pattern([True,False])))
make("granite","Granite",A.GRANITE,dict(embedding_multiplier=3.0,logits_scaling=0.5,residual_multiplier=0.7,attention_multiplier=0.6),lambda g,c:(g.add_embedding_scale(3.0),g.add_residual_scale(0.7),g.add_attention_scale(0.6),g.add_logit_scale(0.5),g.add_rope_dimension_count(8)),tf=qk)
make("starcoder2","Starcoder2",A.STARCODER2,dict(num_key_value_heads=2,sliding_window=None))
def stable(sd,c):
    r={}; norms={}
    for k,t in sd.items():
        m=re.match(r"(.*\.[qk]_layernorm)\.norms\.(\d+)\.weight",k)
        if m: norms.setdefault(m[1],{})[int(m[2])]=t
        else: r[k]=t
    for k,l in norms.items(): r[k+".weight"]=torch.stack([l[i] for i in range(len(l))])
    return r
R=lambda p=None:dict(rope_parameters={"rope_type":"default","rope_theta":1000.0,**({} if p is None else {"partial_rotary_factor":p})})
make("stablelm","StableLm",A.STABLELM,dict(**R(0.5)),lambda g,c:(g.add_rope_dimension_count(4),g.add_parallel_residual(c.use_parallel_residual)))
make("stablelm_norms","StableLm",A.STABLELM,dict(qk_layernorm=True,use_qkv_bias=True,use_parallel_residual=True,**R(0.5)),lambda g,c:(g.add_rope_dimension_count(4),g.add_parallel_residual(True)),tf=stable)
make("cohere","Cohere",A.COMMAND_R,dict(logit_scale=0.5),lambda g,c:(g.add_logit_scale(0.5),g.add_rope_scaling_type(gguf.RopeScalingType.NONE)))
make("cohere_norms","Cohere",A.COMMAND_R,dict(use_qk_norm=True,logit_scale=0.5),lambda g,c:(g.add_logit_scale(0.5),))
make("cohere2","Cohere2",A.COHERE2,dict(sliding_window=5,num_hidden_layers=5,logit_scale=0.3),lambda g,c:(g.add_logit_scale(0.3),g.add_sliding_window(5),g.add_rope_dimension_count(8),g.add_vocab_size(40)))
make("phi","Phi",A.PHI2,dict(num_key_value_heads=4,**R(0.5)),lambda g,c:g.add_rope_dimension_count(4))
def neox(sd,c):
    r={}
    for k,t in sd.items():
        n=c.num_attention_heads; d=c.hidden_size//n
        if k.endswith("query_key_value.weight"): t=t.reshape(n,3,d,c.hidden_size).transpose(0,1).reshape(-1,c.hidden_size)
        elif k.endswith("query_key_value.bias"): t=t.reshape(n,3,d).transpose(0,1).reshape(-1)
        r[k]=t
    return r
make("gptneox","GPTNeoX",A.GPTNEOX,dict(num_key_value_heads="-",**R(0.5)),lambda g,c:(g.add_rope_dimension_count(4),g.add_parallel_residual(True)),tf=neox)
make("bloom","Bloom",A.BLOOM,dict(n_layer=2,n_head=4,num_hidden_layers="-",num_attention_heads="-",intermediate_size="-",max_position_embeddings="-",num_key_value_heads="-"),lambda g,c:g.add_feed_forward_length(128),tf=neox)
def falcon(sd,c):
    r={}
    for k,t in sd.items():
        if k.endswith("query_key_value.weight"):
            kv=c.num_kv_heads if c.new_decoder_architecture else 1; n=c.num_attention_heads; d=c.hidden_size//n
            q,a,b=t.view(kv,n//kv+2,d,c.hidden_size).split([n//kv,1,1],dim=1)
            t=torch.cat([q.reshape(-1,c.hidden_size),a.reshape(-1,c.hidden_size),b.reshape(-1,c.hidden_size)])
        r[k]=t
    return r
fa=dict(intermediate_size="-",num_key_value_heads="-")
make("falcon","Falcon",A.FALCON,dict(**fa),lambda g,c:(g.add_feed_forward_length(128),g.add_head_count_kv(1)),tf=falcon)
make("falcon40","Falcon",A.FALCON,dict(new_decoder_architecture=True,num_kv_heads=2,**fa),lambda g,c:(g.add_feed_forward_length(128),g.add_head_count_kv(2)),tf=falcon)
make("nemotron","Nemotron",A.NEMOTRON,dict(head_dim=8),lambda g,c:g.add_rope_dimension_count(4),less=r"norm\.weight$")
make("arcee","Arcee",A.ARCEE,dict(attention_bias=False),lambda g,c:g.add_rope_dimension_count(8),tf=qk)
make("exaone4","Exaone4",A.EXAONE4,dict(sliding_window=5,num_hidden_layers=5),lambda g,c:(g.add_sliding_window(5),))
make("smollm3","SmolLM3",A.SMOLLM3,dict(num_hidden_layers=4),lambda g,c:g.add_rope_dimension_count(8),tf=qk)
make("seed_oss","SeedOss",A.SEED_OSS,dict(head_dim=16,attention_bias=True))
def phi3(g,c):
    g.add_rope_dimension_count(8); g.add_rope_scaling_orig_ctx_len(64); 
    g.add_rope_scaling_attn_factors(math.sqrt(1+math.log(2)/math.log(64)))
    g.add_sliding_window(2047)
make("phi3","Phi3",A.PHI3,dict(max_position_embeddings=128,original_max_position_embeddings=64,sliding_window=2047,rope_parameters={"rope_type":"longrope","rope_theta":10000.0,"short_factor":[1.0, 1.5, 1.2, 1.1],"long_factor":[2.0, 3.0, 4.0, 5.0],"original_max_position_embeddings":64}),phi3,
     more={"rope_factors_long.weight":[2.0, 3.0, 4.0, 5.0],"rope_factors_short.weight":[1.0, 1.5, 1.2, 1.1]})

with open(os.path.join(os.path.dirname(__file__), "fixtures", "gguf.json"), "w") as f:
    lines = (f"{json.dumps(name)}: {json.dumps({k: v for k, v in case.items() if v is not None}, separators=(',', ':'))}"
             for name, case in cases.items())
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
