#!/bin/sh
# The hessian of vector_norm(u) ** 2 at 0, which by calculus is 2 on the diagonal (the function is the sum of squares):
# PyTorch 2.15.0 gives zeros by torch.func.hessian and jacfwd twice, NaN by torch.autograd.functional.hessian and as soon
# as the outer derivative is jacrev. The same point one step away from 0, and u.square().sum(), give 2 by all of them.
# Seen on 2026-11-28. Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch.func import hessian, jacfwd, jacrev

def norm(u): return torch.linalg.vector_norm(u) ** 2
def squares(u): return u.square().sum()
ways = {
    "func.hessian": lambda f, u: hessian(f)(u),
    "jacfwd of jacfwd": lambda f, u: jacfwd(jacfwd(f))(u),
    "jacrev of jacrev": lambda f, u: jacrev(jacrev(f))(u),
    "jacrev of jacfwd": lambda f, u: jacrev(jacfwd(f))(u),
    "autograd.functional.hessian": torch.autograd.functional.hessian,
}
print("torch", torch.__version__)
zero, near, right = torch.zeros(2), torch.full((2,), 1e-3), 2 * torch.eye(2)
for name, way in ways.items():
    at_zero = way(norm, zero)
    print(name, at_zero.tolist())
    if name in ("func.hessian", "jacfwd of jacfwd"):
        assert torch.equal(at_zero, torch.zeros(2, 2)), name
    else:
        assert at_zero.isnan().all(), name
    assert torch.allclose(way(norm, near), right, atol=1e-4), name
    assert torch.equal(way(squares, zero), right), name
print("as seen")
PYTHON
