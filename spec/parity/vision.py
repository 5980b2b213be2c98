"""Boxes, regions, losses and a detector against torchvision: vision.py DIR writes cases, which spec/parity/vision.lua computes again."""
import json
import sys
import warnings

import torch
import torchvision.ops as o
from torchvision.models.detection import retinanet_resnet50_fpn

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
folder, n = sys.argv[1], 60
corner = torch.rand(n, 2) * 40
boxes = torch.cat([corner, corner + torch.rand(n, 2) * 20 + 0.5], 1)
others = boxes.roll(7, 0)[:23] + torch.rand(23, 4) * 0.1
scores, groups = torch.rand(n), torch.randint(0, 3, (n,))


def plain(t):
    return {"shape": list(t.shape), "data": t.detach().double().flatten().tolist()}


cases = {"boxes": boxes, "others": others, "scores": scores, "groups": groups, "area": o.box_area(boxes)}
for name in ("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou"):
    cases[name] = getattr(o, name)(boxes, others)
for t in ("0.1", "0.3", "0.5", "0.7"):
    cases["nms" + t] = o.nms(boxes, scores, float(t))
    cases["batched_nms" + t] = o.batched_nms(boxes, scores, groups, float(t))
for name in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
    x = boxes[:23].clone().requires_grad_()
    cases[name] = getattr(o, name)(x, others)
    cases[name].sum().backward()
    cases[name + "_grad"] = x.grad
for form in ("xywh", "cxcywh"):
    cases["to_" + form], cases["from_" + form] = o.box_convert(boxes, "xyxy", form), o.box_convert(boxes, form, "xyxy")
cases["clip"], cases["small"] = o.clip_boxes_to_image(boxes - 5, (30, 25)), o.remove_small_boxes(boxes, 9.0)
cases["logits"], cases["targets"] = torch.randn(5, 7) * 3, (torch.rand(5, 7) > 0.7).double()
cases["focal"] = torch.stack([o.sigmoid_focal_loss(cases["logits"], cases["targets"], a, g, "mean")
                              for a, g in ((0.25, 2), (-1, 1.5), (0.6, 0.0))])
cases["x"] = torch.randn(2, 3, 13, 17)
cases["rois"] = torch.cat([torch.randint(0, 2, (n, 1)).double(), boxes * 0.9 - 6], 1)
regions = []
for size in (3, (2, 5)):
    for ratio in (2, -1):
        for aligned in (False, True):
            for scale in (1.0, 0.37):
                x = cases["x"].clone().requires_grad_()
                y = o.roi_align(x, cases["rois"], size, scale, ratio, aligned)
                (y * torch.sin(torch.arange(y.numel()).double()).reshape(y.shape)).sum().backward()
                regions.append({"size": size, "ratio": ratio, "aligned": aligned, "scale": scale, "y": plain(y), "grad": plain(x.grad)})

net = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5, min_size=96, max_size=160)
torch.manual_seed(1)
with torch.no_grad():
    for k, t in net.state_dict().items():
        if "running_var" in k:
            t.uniform_(0.5, 1.5)
        elif "bn" in k and k.endswith("weight"):
            t.uniform_(0.2, 0.6)
        elif "running_mean" in k:
            t.normal_(0, 0.1)
    net.head.classification_head.cls_logits.weight.normal_(0, 0.05)
    net.head.classification_head.cls_logits.bias.fill_(-1.5)
    net.head.regression_head.bbox_reg.weight.normal_(0, 0.03)
net.double()
torch.save(net.state_dict(), folder + "/retinanet.pth")
images = [torch.sin(0.01 * torch.arange(3 * 80 * 100)).reshape(3, 80, 100) * 0.5 + 0.5,
          torch.cos(0.013 * torch.arange(3 * 120 * 64)).reshape(3, 120, 64) * 0.5 + 0.5]
images = [image.double() for image in images]
with torch.no_grad():
    found = [{k: v.tolist() for k, v in one.items()} for one in net.eval()(images)]
net.train()
for m in net.modules():
    if isinstance(m, torch.nn.BatchNorm2d):
        m.eval()
losses = net(images, [{"boxes": torch.tensor([[5.0, 6, 60, 50], [30, 20, 90, 70]]), "labels": torch.tensor([1, 3])},
                      {"boxes": torch.tensor([[10.0, 10, 50, 100]]), "labels": torch.tensor([4])}])
sum(losses.values()).backward()
with open(folder + "/cases.json", "w") as f:
    json.dump({"values": {k: plain(v) for k, v in cases.items()}, "regions": regions, "found": found,
               "images": [plain(image) for image in images], "losses": {k: v.item() for k, v in losses.items()},
               "grad": net.backbone.body.conv1.weight.grad.abs().sum().item()}, f)
