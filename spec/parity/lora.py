"""LoRA against PEFT, both ways: `make DIR` writes a base model and an adapter with its output; `check DIR` loads the adapter that
spec/parity/lora.lua wrote."""
import json
import sys
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

warnings.simplefilter("ignore")
what, folder = sys.argv[1:]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(7, 6)
        self.fc1 = torch.nn.Linear(6, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(self.fc1(self.emb(x)))).sum(1)


torch.manual_seed(0)
net, x = Net(), torch.arange(6).view(2, 3)
if what == "make":
    save_file(net.state_dict(), folder + "/base.safetensors")
    for name, options in {"plain": {"modules_to_save": ["head"]}, "rank": {"use_rslora": True, "rank_pattern": {"emb": 2}, "bias":
                          "lora_only", "alpha_pattern": {"fc1": 7}}}.items():
        net = Net()
        net.load_state_dict(load_file(folder + "/base.safetensors"))
        model = get_peft_model(net, LoraConfig(r=3, lora_alpha=5, target_modules=["emb", "fc1"], lora_dropout=0.1, **options))
        for p in model.parameters():
            if p.requires_grad:
                p.data.normal_()
        model.eval().save_pretrained(f"{folder}/{name}")
        json.dump(model(x).tolist(), open(f"{folder}/{name}.json", "w"))
else:
    for name in ("plain", "rank", "own"):
        net = Net()
        net.load_state_dict(load_file(folder + "/base.safetensors"))
        model = PeftModel.from_pretrained(net, f"{folder}/{name}_moth").eval()
        want = torch.tensor(json.load(open(f"{folder}/{name}_moth.json")))
        assert torch.allclose(model(x), want, rtol=1e-4, atol=1e-5), (name, model(x), want)
    print("peft: adapters are read both ways")
