"""Writes models of torchvision, torch.nn and transformers by both of PyTorch's ONNX exporters, with PyTorch's results, in
the form of onnx_cases.py: onnx_models.py FOLDER [names]. Weights are random, images small. Legacy files have an open
first dimension and are run at another size of it, too; those of dynamo=True need onnxscript. Skips what is not installed."""
import logging
import os
import sys
import warnings

import torch
from onnx import numpy_helper
from torch import nn

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
say = os.fdopen(os.dup(1), "w", buffering=1)  # the exporters print graphs from C++ when they fail
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
torch.manual_seed(0)
torch.set_num_threads(1)
folder, chosen = sys.argv[1], sys.argv[2:]
os.makedirs(folder, exist_ok=True)


class First(nn.Module):
    """The results of a model that are tensors: of segmentation "out", of transformers the first."""

    def __init__(self, model, **more):
        super().__init__()
        self.model, self.more = model, more

    def forward(self, *args):
        out = self.model(*args, **self.more)
        if isinstance(out, dict):
            return out["out"] if "out" in out else out[next(iter(out))]
        return out[0] if isinstance(out, tuple) else out


class Packed(nn.Module):
    """A recurrent layer with the last hidden state and a head."""

    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = getattr(nn, kind)(6, 8, batch_first=True, **options)

    def forward(self, x):
        y, h = self.rnn(x)
        return (y, *h) if isinstance(h, tuple) else (y, h)


def image(n, size):
    return lambda b: (torch.randn(b, n, size, size),)


cases = {}


def vision():
    import torchvision.models as m
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt
    from torchvision.models.swin_transformer import SwinTransformer
    from torchvision.models.vision_transformer import VisionTransformer
    x = image(3, 64)
    for name in ("resnet18 resnet50 resnext50_32x4d mobilenet_v2 mobilenet_v3_small mobilenet_v3_large "
                 "efficientnet_b0 densenet121 squeezenet1_0 squeezenet1_1 shufflenet_v2_x0_5 shufflenet_v2_x1_0 "
                 "regnet_y_400mf regnet_x_400mf mnasnet0_5").split():
        cases[name] = (lambda name=name: getattr(m, name)(num_classes=10), x)
    cases["googlenet"] = (lambda: m.googlenet(num_classes=10, aux_logits=False, init_weights=False), x)
    cases["inception_v3"] = (lambda: m.inception_v3(num_classes=10, aux_logits=False, init_weights=False), image(3, 96))
    cases["vgg11_bn"] = (lambda: nn.Sequential(m.vgg11_bn().features, nn.AdaptiveAvgPool2d(1), nn.Flatten()), x)
    cases["convnext"] = (lambda: ConvNeXt([CNBlockConfig(24, 48, 2), CNBlockConfig(48, None, 2)], num_classes=10), x)
    cases["swin"] = (lambda: SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10), x)
    cases["vit"] = (lambda: VisionTransformer(64, 16, 2, 2, 32, 64, num_classes=10), x)
    cases["maxvit"] = (lambda: m.maxvit.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 16, 0.0, num_classes=10), x)
    segmentation = m.segmentation
    for name in "fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large".split():
        cases[name] = (lambda name=name: First(getattr(segmentation, name)(weights=None, weights_backbone=None,
                                                                             num_classes=5)), x)


def layers():
    words = lambda b: (torch.randn(b, 7, 6),)
    for kind in "LSTM GRU RNN".split():
        cases[kind.lower()] = (lambda kind=kind: Packed(kind, num_layers=2, bidirectional=True), words)
    cases["lstm_no_bias"] = (lambda: Packed("LSTM", bias=False), words)
    cases["encoder"] = (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2,
                                                      enable_nested_tensor=False), lambda b: (torch.randn(b, 5, 8),))
    cases["transformer"] = (lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
                            lambda b: (torch.randn(b, 5, 8), torch.randn(b, 4, 8)))
    cases["conv1d_net"] = (lambda: nn.Sequential(nn.Conv1d(3, 8, 5, padding=2, padding_mode="reflect"), nn.GELU(),
                                                 nn.GroupNorm(2, 8), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(64, 4)),
                           lambda b: (torch.randn(b, 3, 16),))
    cases["conv3d_net"] = (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, stride=2), nn.InstanceNorm3d(4, affine=True),
                                                 nn.ELU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
                           lambda b: (torch.randn(b, 2, 8, 8, 8),))
    cases["bag"] = (lambda: nn.EmbeddingBag(10, 4, mode="mean"), lambda b: (torch.randint(0, 10, (b, 5)),))
    cases["bilinear"] = (lambda: nn.Bilinear(3, 4, 2), lambda b: (torch.randn(b, 3), torch.randn(b, 4)))


def language():
    import transformers as t
    ids = lambda b: (torch.randint(0, 50, (b, 7)),)
    small = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 48, "max_position_embeddings": 16}
    made = {"bert": lambda: t.BertModel(t.BertConfig(**small)),
            "bert_classifier": lambda: t.BertForSequenceClassification(t.BertConfig(**small)),
            "distilbert": lambda: t.DistilBertModel(t.DistilBertConfig(vocab_size=50, dim=32, n_layers=2, n_heads=2,
                                                                       hidden_dim=48, max_position_embeddings=16)),
            "roberta": lambda: t.RobertaModel(t.RobertaConfig(**{**small, "max_position_embeddings": 24})),
            "albert": lambda: t.AlbertModel(t.AlbertConfig(embedding_size=16, **small)),
            "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2)),
            "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(num_key_value_heads=1, **small))}
    caches = {"gpt2", "llama"}
    for name, make in made.items():
        more = {"return_dict": False, **({"use_cache": False} if name in caches else {})}
        cases[name] = (lambda make=make, more=more: First(make(), **more), ids)


for group in (vision, layers, language):
    try:
        group()
    except ImportError as error:
        print(f"onnx models: {error}: skipped", file=say)
try:
    import onnxscript  # noqa: F401
    kinds = ("legacy", "dynamo")
except ImportError:
    kinds = ("legacy",)
    print("onnx models: onnxscript is not there: dynamo=True is skipped", file=say)


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [t for part in value for t in flat(part)]


def put(path, what, values):
    for i, value in enumerate(values):
        with open(f"{path}.{what}{i + 1}", "wb") as file:
            file.write(numpy_helper.from_array(value.numpy()).SerializeToString())


refused = 0
with open(f"{folder}/list.txt", "w") as listing:
    for name, (make, inputs) in cases.items():
        if chosen and name not in chosen:
            continue
        model = make().eval()
        # Activations that neither vanish nor grow: the statistics of a batch.
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
            model.train()
            with torch.no_grad():
                model(*inputs(8))
            model.eval()
        for kind in kinds:
            path = f"{folder}/model_{name}_{kind}"
            args = inputs(2)
            names = [f"in{i}" for i in range(len(args))]
            try:
                if kind == "legacy":
                    torch.onnx.export(model, args, path + ".onnx", dynamo=False, opset_version=17, input_names=names,
                                      dynamic_axes={n: {0: "batch"} for n in names})
                else:
                    torch.onnx.export(model, args, path + ".onnx", dynamo=True, input_names=names, external_data=False,
                                      verbose=False)
            except Exception as error:  # PyTorch's own exporter does not take it
                refused += 1
                print(f"onnx models: {name}: PyTorch's {kind} exporter: {type(error).__name__} "
                      + str(error).split("\n")[0][:120], file=say)
                continue
            runs = {"": args, "_3": inputs(3)} if kind == "legacy" else {"": args}
            for run, given in runs.items():
                if run:
                    os.link(path + ".onnx", f"{path}{run}.onnx")
                with torch.no_grad():
                    want = flat(model(*given))
                put(path + run, "in", given)
                put(path + run, "out", want)
                listing.write(f"model_{name}_{kind}{run} 1e-3 1e-4 {','.join(['tensor'] * len(given))}; "
                              f"{','.join(['tensor'] * len(want))};\n")
                listing.flush()
print(f"onnx models: {len(cases)} models, {refused} not written by PyTorch", file=say)
