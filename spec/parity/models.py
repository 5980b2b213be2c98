"""Models with weights of torchvision and transformers at random, for spec/parity/models.lua: models.py DIR
Writes checkpoints, inputs, outputs, and losses of three training steps. Without the packages it says so and ends well."""
import json
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
import torch

try:
    import torchvision
    import transformers
except ImportError as missing:
    print(f"models: skipped, since there is no {missing.name} (pip install torchvision transformers)")
    sys.exit(3)
transformers.logging.set_verbosity_error()

torch.set_default_dtype(torch.float64)
folder = sys.argv[1]
cases = {}


def plain(t):
    return {"shape": list(t.shape), "data": t.detach().double().reshape(-1).tolist()}


def wave(*shape, at=0.0):
    return torch.sin(1.7 * torch.arange(torch.Size(shape).numel()) + at).reshape(shape)


def shaken(model):
    """Statistics and weights that are not those of the beginning."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, t in list(model.named_parameters()) + list(model.named_buffers()):
            if "running_var" in name:
                t.uniform_(0.5, 1.5)
            elif "running_mean" in name or name.endswith("bias") or t.is_floating_point() and t.numel() > 1 and t.std() == 0:
                t.normal_(0.1 if "weight" in name else 0, 0.1)
    return model


def image(name, model, size, train=True):
    model, x = shaken(model).eval(), wave(2, 3, size, size)
    torch.save(model.state_dict(), f"{folder}/{name}.pth")
    case = {"size": size, "out": plain(model(x)), "losses": []}
    if train:
        o = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        for _ in range(3):
            o.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([1, 3]))
            loss.backward()
            o.step()
            case["losses"].append(loss.item())
    cases[name] = case


V = torchvision.models
image("resnet18", V.resnet18(num_classes=10), 64)
image("resnet34", V.resnet34(num_classes=10), 64, train=False)
image("resnet50", V.resnet50(num_classes=10), 64)
image("mobilenet_v2", V.mobilenet_v2(num_classes=10), 64)
for name in ("resnext50_32x4d", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "swin_t", "swin_v2_t", "densenet121",
             "regnet_y_400mf"):
    model = getattr(V, name)(num_classes=10)
    for m in model.modules():  # moth's draws would not be the same
        if isinstance(m, (torch.nn.Dropout, torchvision.ops.StochasticDepth)):
            m.p = 0
    image(name, model.double(), 64)
image("vgg11", V.vgg11(num_classes=10), 32, train=False)
image("vgg13_bn", V.vgg13_bn(num_classes=10), 32, train=False)
image("vit", V.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10), 32)


def text(name, model, vocab, train=True, **more):
    model = shaken(model).eval()
    model.save_pretrained(f"{folder}/{name}")
    ids = (torch.arange(2 * 9).reshape(2, 9) * 7) % vocab
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    case = {"ids": ids.tolist(), "mask": mask.tolist(), "vocab": vocab, "losses": [], **more}
    with torch.no_grad():
        case["out"] = plain(model(ids).logits)
        case["greedy"] = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None).tolist()
        case["padded"] = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, repetition_penalty=1.3, pad_token_id=0, eos_token_id=None).tolist()
        scores = model(ids).logits[:, -1]
        tops = transformers.generation.LogitsProcessorList([transformers.TemperatureLogitsWarper(0.7),
            transformers.TopKLogitsWarper(20), transformers.TopPLogitsWarper(0.6)])
        case["probs"] = plain(tops(ids, scores).softmax(-1))
    o = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        o.zero_grad()
        logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        o.step()
        case["losses"].append(loss.item())
    cases[name] = case


T = transformers
text("gpt2", T.GPT2LMHeadModel(T.GPT2Config(vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0,
     embd_pdrop=0, attn_pdrop=0)), 61)
small = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=32)
text("llama", T.LlamaForCausalLM(T.LlamaConfig(**small, num_key_value_heads=2)), 61)
text("llama_tied", T.LlamaForCausalLM(T.LlamaConfig(**small, num_key_value_heads=1, tie_word_embeddings=True, attention_bias=True,
     rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 16})), 61)
text("qwen2", T.Qwen2ForCausalLM(T.Qwen2Config(**small, num_key_value_heads=2)), 61)
text("mistral", T.MistralForCausalLM(T.MistralConfig(**small, num_key_value_heads=2, sliding_window=None)), 61)

bert = shaken(T.BertModel(T.BertConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
              intermediate_size=48, max_position_embeddings=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0))).eval()
bert.save_pretrained(f"{folder}/bert")
ids, types, mask = (torch.arange(18).reshape(2, 9) * 7) % 61, torch.arange(18).reshape(2, 9) % 2, torch.ones(2, 9)
mask[1, 6:] = 0
out = bert(ids, attention_mask=mask, token_type_ids=types)
cases["bert"] = {"ids": ids.tolist(), "types": types.tolist(), "mask": mask.tolist(), "hidden": plain(out.last_hidden_state),
                 "pooled": plain(out.pooler_output)}
with open(f"{folder}/cases.json", "w") as f:
    json.dump(cases, f)
