"""Tiny language models of transformers for spec/parity/families.lua: families.py DIR [PART OF A NAME]
Writes a folder for each, inputs, logits and greedy ids. "families.py DIR --spec" writes those marked so, with a few numbers
of each, for spec/models/families_spec.lua. Without the packages it says so and ends well."""
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
for_spec = part == "--spec"
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
    model = kind.from_pretrained(path, attn_implementation="eager").eval()
    return path, weights, model


def plain(t):
    return {"shape": list(t.shape), "data": [round(x, 6) for x in t.detach().double().reshape(-1).tolist()]}


def keep(name, case, weights):
    """For the spec: shapes of the first of each list of layers, and some of the numbers."""
    cases[name] = case
    if not for_spec:
        return
    shapes = {}
    for key, t in weights.items():  # "layer.#.weight": of as many layers as the text says behind "*"
        alike = re.sub(r"\.\d+\.", ".#.", key, count=1)
        count = sum(re.sub(r"\.\d+\.", ".#.", x, count=1) == alike and y.shape == t.shape for x, y in weights.items())
        if alike not in shapes:
            shapes[alike] = "x".join(map(str, t.shape)) + ("" if alike == key else f"*{count}")
    assert sum(int(x.partition("*")[2] or 1) for x in shapes.values()) == len(weights), name
    shapes = " ".join(f"{key}={x}" for key, x in shapes.items())
    config = {k: v for k, v in json.load(open(f"{case['folder']}/config.json")).items() if v is not None}
    short = {"config": config, "shapes": shapes, "ids": case["ids"], "mask": case.get("mask"), "types": case.get("types"),
             "greedy": case.get("greedy"), "out": [{"shape": x["shape"], "tail": x["data"][-6:]} for x in case["out"]]}
    spec[name] = {key: v for key, v in short.items() if v is not None}


def wanted(name, is_spec):
    return is_spec if for_spec else part in name


def encoder(name, kind, head, is_spec=True, **fields):
    name = f"{name} {head}"
    if not wanted(name, is_spec):
        return
    config = getattr(T, kind + "Config")(vocab_size=40, max_position_embeddings=40, **fields)
    path, weights, model = filled(name, getattr(T, kind + head)(config))
    ids = (torch.arange(18).reshape(2, 9) * 7) % 36 + 4
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    ids[1, 6:] = config.pad_token_id
    types = None if "DistilBert" in kind else torch.arange(18).reshape(2, 9) % config.type_vocab_size
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
for act in ("gelu_10", "quick_gelu", "laplace", "relu2", "relu6", "leaky_relu", "linear", "sigmoid", "tanh", "gelu_fast",
            "gelu_accurate", "gelu_python", "swish"):
    encoder(f"bert {act}", "Bert", "Model", False, hidden_act=act, **small)
encoder("bert untied", "Bert", "ForMaskedLM", False, tie_word_embeddings=False, **small)

with open(f"{folder}/cases.json", "w") as f:
    json.dump(cases, f)
if for_spec:
    with open(os.path.join(os.path.dirname(__file__), "..", "models", "fixtures", "families.json"), "w") as f:
        lines = (f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in spec.items())
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
