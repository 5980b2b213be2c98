"""Metrics against torchmetrics: writes cases with its values (of the function for the first batch, of the class for all batches),
which spec/parity/metrics.lua computes again. Usage: python3 spec/parity/metrics.py FILE; luajit spec/parity/metrics.lua FILE"""
import json
import math
import sys
import warnings

import torch
import torchmetrics
import torchmetrics.functional as F
from torchmetrics.functional.segmentation import mean_iou
from torchmetrics.segmentation import MeanIoU

warnings.simplefilter("ignore")
torch.manual_seed(0)
cases = []


def plain(v):
    if isinstance(v, torch.Tensor):
        data = [("nan" if math.isnan(x) else x) for x in v.double().flatten().tolist()]
        return {"shape": list(v.shape), "data": data, "dtype": str(v.dtype)[6:]}
    return v


def case(cls, fn, batches, zero_based=False, **options):
    c = {"cls": cls, "fn": fn, "options": options, "zero_based": zero_based,
         "batches": [[plain(v) for v in b] for b in batches]}
    known = {k: v for k, v in options.items()}
    if cls == "MeanIoU":
        metric, function = MeanIoU, None  # its function gives a value per sample
    else:
        metric, function = getattr(torchmetrics, cls, None) or getattr(torchmetrics.text, cls), fn and getattr(F, fn, None)
    if cls in ("BLEUScore", "Perplexity"):
        metric, function = getattr(torchmetrics.text, cls), getattr(F.text, fn)
    if function:
        c["one"] = plain(function(*batches[0], **known))
    m = metric(**known)
    for b in batches:
        m.update(*b)
    c["all"] = plain(m.compute())
    cases.append(c)


def binary(scores, n=20):
    t = torch.randint(0, 2, (n,))
    p = torch.randn(n) if scores == "logits" else torch.rand(n) if scores == "p" else torch.randint(0, 2, (n,))
    return p, t


def tied(n=20):
    return torch.randint(0, 5, (n,)) / 4, torch.randint(0, 2, (n,))


SCORES = [("Accuracy", "accuracy"), ("Precision", "precision"), ("Recall", "recall"), ("F1Score", "f1_score"),
          ("Specificity", "specificity"), ("JaccardIndex", "jaccard_index"), ("FBetaScore", "fbeta_score")]
for cls, fn in SCORES:
    more = {"beta": 2.0} if cls == "FBetaScore" else {}
    for kind in ("logits", "p", "int"):
        case(cls, fn, [binary(kind), binary(kind, 7)], task="binary", **more)
    case(cls, fn, [binary("p"), binary("p", 7)], task="binary", threshold=0.3, ignore_index=0, **more)
    case(cls, fn, [(torch.zeros(4), torch.zeros(4, dtype=torch.long))], task="binary", **more)
    for average in ("micro", "macro", "weighted", "none"):
        o = dict(task="multiclass", num_classes=4, average=average, **more)
        b = [(torch.randn(12, 4), torch.randint(0, 4, (12,))), (torch.randn(5, 4), torch.randint(0, 4, (5,)))]
        case(cls, fn, b, True, **o)
        few = [(torch.randint(0, 2, (9,)), torch.randint(0, 3, (9,)))]  # a class that is nowhere
        case(cls, fn, few, True, **o)
        case(cls, fn, b, True, ignore_index=1, **o)
        case(cls, fn, [(torch.randn(3, 4, 5), torch.randint(0, 4, (3, 5)))], True, **o)
        if cls != "JaccardIndex":
            case(cls, fn, b, True, top_k=2, **o)
            case(cls, fn, [(torch.randn(6, 4), torch.randint(0, 2, (6,)))], True, top_k=3, **o)
        o = dict(task="multilabel", num_labels=3, average=average, **more)
        case(cls, fn, [(torch.randn(8, 3), torch.randint(0, 2, (8, 3))), (torch.rand(4, 3), torch.randint(0, 2, (4, 3)))], **o)
        case(cls, fn, [(torch.rand(4, 3, 2), torch.randint(-1, 2, (4, 3, 2)))], ignore_index=-1, **o)
        if cls in ("Precision", "Recall", "F1Score", "JaccardIndex"):
            case(cls, fn, few, True, zero_division=1.0, **dict(task="multiclass", num_classes=4, average=average))
for normalize in ("none", "true", "pred", "all"):
    case("ConfusionMatrix", "confusion_matrix", [binary("p"), binary("p")], task="binary", normalize=normalize)
    case("ConfusionMatrix", "confusion_matrix", [(torch.randn(9, 4), torch.randint(0, 3, (9,)))] * 2, True, task="multiclass",
         num_classes=4, normalize=normalize)
    case("ConfusionMatrix", "confusion_matrix", [(torch.randn(9, 4), torch.randint(0, 2, (9, 4)))], task="multilabel",
         num_labels=4, normalize=normalize)
for cls, fn in (("AUROC", "auroc"), ("AveragePrecision", "average_precision")):
    for thresholds in (None, 5, [0.1, 0.5, 0.7]):
        o = {} if thresholds is None else {"thresholds": thresholds}
        case(cls, fn, [binary("p"), binary("p")], task="binary", **o)
        case(cls, fn, [binary("logits"), binary("logits")], task="binary", **o)
        case(cls, fn, [tied(), tied()], task="binary", **o)
        case(cls, fn, [(torch.rand(9), torch.randint(-1, 2, (9,)))], task="binary", ignore_index=-1, **o)
        case(cls, fn, [(torch.rand(5), torch.zeros(5, dtype=torch.long))], task="binary", **o)
        case(cls, fn, [(torch.rand(5), torch.ones(5, dtype=torch.long))], task="binary", **o)
        for average in ("macro", "weighted", "none"):
            case(cls, fn, [(torch.randn(12, 4), torch.randint(0, 4, (12,))) for _ in range(2)], True, task="multiclass",
                 num_classes=4, average=average, **o)
            case(cls, fn, [(torch.randn(12, 4), torch.randint(0, 4, (12,)))], True, task="multiclass", num_classes=4,
                 average=average, ignore_index=2, **o)
        case(cls, fn, [(torch.randn(12, 4), torch.randint(0, 3, (12,)))], True, task="multiclass", num_classes=4, **o)
        for average in ("micro", "macro", "weighted", "none"):
            case(cls, fn, [(torch.randn(12, 3), torch.randint(0, 2, (12, 3))) for _ in range(2)], task="multilabel",
                 num_labels=3, average=average, **o)
            case(cls, fn, [(torch.randn(12, 3), torch.randint(-1, 2, (12, 3)))], task="multilabel", num_labels=3,
                 average=average, ignore_index=-1, **o)
for f in (0.2, 0.5, 1.0):
    case("AUROC", "auroc", [binary("p"), binary("p")], task="binary", max_fpr=f)
for fmt, make in (("index", lambda: torch.randint(0, 3, (4, 5, 5))), ("one-hot", lambda: torch.randint(0, 2, (4, 3, 5)))):
    for per_class in (False, True):
        for background in (True, False):
            case("MeanIoU", "mean_iou", [(make(), make()), (make(), make())], fmt == "index", num_classes=3,
                 per_class=per_class, include_background=background, input_format=fmt)
a, b = (torch.randn(10), torch.randn(10)), (torch.randn(4), torch.randn(4))
case("MeanAbsoluteError", "mean_absolute_error", [a, b])
case("MeanSquaredError", "mean_squared_error", [a, b])
case("MeanSquaredError", "mean_squared_error", [a, b], squared=False)
case("MeanAbsolutePercentageError", "mean_absolute_percentage_error", [a, b])
c = [(torch.randn(10, 3), torch.randn(10, 3)), (torch.randn(4, 3), torch.randn(4, 3))]
case("MeanSquaredError", "mean_squared_error", c, num_outputs=3)
case("R2Score", "r2_score", [a, b])
case("R2Score", "r2_score", [a, b], adjusted=2)
case("R2Score", "r2_score", [(torch.randn(5), torch.ones(5))])
case("R2Score", "r2_score", [(torch.ones(5), torch.ones(5))])
for how in ("raw_values", "uniform_average", "variance_weighted"):
    case("R2Score", "r2_score", c, multioutput=how)
p = [(torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))), (torch.randn(1, 5, 7), torch.randint(0, 7, (1, 5)))]
case("Perplexity", "perplexity", p, True)
p[0][1][0, 3:] = -100
case("Perplexity", "perplexity", p, True, ignore_index=-100)
said = [["the cat is on the mat", "a dog  barks"], ["the the the the the", "he read the book because he was interested in history"]]
refs = [[["there is a cat on the mat", "a cat is on the mat"], ["the dog barks"]],
        [["the cat sat on the mat over there"], ["he was interested in world history because he read the book"]]]
for o in ({}, {"smooth": True}, {"n_gram": 2}, {"n_gram": 2, "weights": [0.3, 0.7]}, {"n_gram": 1}):
    case("BLEUScore", "bleu_score", list(zip(said, refs)), **o)
    case("BLEUScore", "bleu_score", [(said[1][:1], refs[0][:1])], **o)
for cls in ("MeanMetric", "SumMetric", "MaxMetric", "MinMetric", "CatMetric"):
    case(cls, None, [(torch.randn(4),), (torch.tensor([1.0, math.nan, 3.0]),)], nan_strategy="ignore")
case("MeanMetric", None, [(torch.randn(4), torch.rand(4)), (torch.randn(()), torch.rand(()))])
json.dump({"cases": cases}, open(sys.argv[1], "w"))
print(len(cases), "cases of metrics")
