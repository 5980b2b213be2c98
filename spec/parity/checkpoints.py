"""Loads what checkpoints.lua has written by torch.distributed.checkpoint, and compares: python3 checkpoints.py DIR"""
import os
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

warnings.simplefilter("ignore")
folder = sys.argv[1]


def fresh():
    model = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1, bias=False))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def check(name, model, optim):
    expected = load_file(os.path.join(folder, name + ".safetensors"))
    for key, p in model.named_parameters():
        assert torch.equal(p, expected[key]), (name, key)
        for moment in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(optim.state[p][moment], expected[f"{key}.{moment}"]), (name, key, moment)
        assert optim.state[p]["step"] == 3
    assert optim.param_groups[0]["lr"] == 0.5
    model(torch.ones(1, 2)).sum().backward()
    optim.step()


model, optim = fresh()
weights, moments = get_state_dict(model, optim)
state = {"model": weights, "optim": moments, "step": 0}
dcp.load(state, checkpoint_id=os.path.join(folder, "four"))
set_state_dict(model, optim, model_state_dict=state["model"], optim_state_dict=state["optim"])
assert state["step"] == 3
check("four", model, optim)

model, optim = fresh()
model(torch.ones(1, 2)).sum().backward()
optim.step()
state = {"model": model.state_dict(), "optim": optim.state_dict()}
dcp.load(state, checkpoint_id=os.path.join(folder, "one"))
model.load_state_dict(state["model"])
optim.load_state_dict(state["optim"])
check("one", model, optim)

path = os.path.join(folder, "four.pt")
dcp_to_torch_save(os.path.join(folder, "four"), path)
assert torch.equal(torch.load(path)["model"]["0.weight"], load_file(os.path.join(folder, "four.safetensors"))["0.weight"])
print("checkpoints: 4 ranks and 1 process: PyTorch loads what moth has written")
