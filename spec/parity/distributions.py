"""Distributions against PyTorch: writes to a JSON file how each is made, values, and what torch.distributions says of them
(log_prob, cdf, icdf, entropy, mean, mode, variance, their gradients, KL divergences, transforms)."""
import json
import sys

import torch
import torch.distributions as D
import torch.distributions.transforms as T

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def out(t):
    t = t.detach()
    return {"shape": list(t.shape), "data": t.reshape(-1).double().tolist()}


def t(*v):
    return torch.tensor(v if len(v) > 1 else v[0])


M = torch.randn(2, 3, 3)
COV = M @ M.mT + 0.5 * torch.eye(3)
TRIL = torch.linalg.cholesky(COV)
W = torch.randn(2, 3, 2)
P = t([0.2, 0.5, 0.3])
LOGITS = torch.randn(2, 4)
CASES = [
    ("Normal", dict(loc=t(0.5, -1.0), scale=t(0.3, 2.0))), ("LogNormal", dict(loc=t(0.5, -1.0), scale=t(0.3, 0.8))),
    ("HalfNormal", dict(scale=t(0.3, 2.0))), ("Uniform", dict(low=t(-1.0, 0.5), high=t(2.0, 0.75))),
    ("Exponential", dict(rate=t(0.3, 4.0))), ("Laplace", dict(loc=t(0.5, -1.0), scale=t(0.3, 2.0))),
    ("Cauchy", dict(loc=t(0.5, -1.0), scale=t(0.3, 2.0))), ("HalfCauchy", dict(scale=t(0.3, 2.0))),
    ("Gumbel", dict(loc=t(0.5, -1.0), scale=t(0.3, 2.0))), ("Weibull", dict(scale=t(0.5, 2.0), concentration=t(1.5, 3.0))),
    ("Pareto", dict(scale=t(0.5, 2.0), alpha=t(0.9, 3.5))),
    ("Kumaraswamy", dict(concentration1=t(0.9, 3.0), concentration0=t(2.0, 1.5))),
    ("Gamma", dict(concentration=t(0.4, 3.0), rate=t(2.0, 0.5))), ("Chi2", dict(df=t(0.7, 5.0))),
    ("InverseGamma", dict(concentration=t(1.4, 3.0), rate=t(2.0, 0.5))),
    ("Beta", dict(concentration1=t(0.4, 3.0), concentration0=t(2.0, 1.5))),
    ("Dirichlet", dict(concentration=t([[0.5, 0.9, 0.7], [2.0, 1.0, 3.0]]))),
    ("StudentT", dict(df=t(0.8, 5.0), loc=t(0.5, -1.0), scale=t(0.3, 2.0))),
    ("FisherSnedecor", dict(df1=t(1.5, 3.0), df2=t(3.0, 7.0))),
    ("Bernoulli", dict(probs=t(0.2, 0.7))), ("Bernoulli", dict(logits=t(-0.4, 2.0))),
    ("ContinuousBernoulli", dict(probs=t(0.2, 0.5003))), ("ContinuousBernoulli", dict(logits=t(-0.4, 2.0))),
    ("Geometric", dict(probs=t(0.2, 0.7))), ("Geometric", dict(logits=t(-0.4, 2.0))),
    ("Binomial", dict(total_count=t(7.0, 7.0), probs=t(0.2, 0.7))), ("Binomial", dict(total_count=t(5.0, 5.0), logits=t(-0.4, 2.0))),
    ("NegativeBinomial", dict(total_count=t(3.0, 2.5), probs=t(0.2, 0.7))),
    ("NegativeBinomial", dict(total_count=t(3.0, 1.0), logits=t(-0.4, 0.3))),
    ("Poisson", dict(rate=t(0.3, 8.0))),
    ("Categorical", dict(probs=P)), ("Categorical", dict(logits=LOGITS)),
    ("OneHotCategorical", dict(probs=P)), ("OneHotCategorical", dict(logits=LOGITS)),
    ("OneHotCategoricalStraightThrough", dict(probs=P)),
    ("Multinomial", dict(total_count=6, probs=P)), ("Multinomial", dict(total_count=4, logits=LOGITS)),
    ("MultivariateNormal", dict(loc=torch.randn(2, 3), covariance_matrix=COV)),
    ("MultivariateNormal", dict(loc=torch.randn(3), scale_tril=TRIL)),
    ("MultivariateNormal", dict(loc=torch.randn(2, 3), precision_matrix=COV)),
    ("LowRankMultivariateNormal", dict(loc=torch.randn(2, 3), cov_factor=W, cov_diag=torch.rand(2, 3) + 0.2)),
    ("Wishart", dict(df=t(3.5, 6.0), covariance_matrix=COV)), ("Wishart", dict(df=t(4.5), scale_tril=TRIL[0])),
    ("LogisticNormal", dict(loc=torch.randn(2, 3), scale=torch.rand(2, 3) + 0.3)),
    ("RelaxedBernoulli", dict(temperature=t(0.7), probs=t(0.2, 0.7))),
    ("RelaxedBernoulli", dict(temperature=t(1.7), logits=t(-0.2, 0.7))),
    ("RelaxedOneHotCategorical", dict(temperature=t(0.7), probs=P)),
    ("RelaxedOneHotCategorical", dict(temperature=t(0.7), logits=LOGITS)),
    ("VonMises", dict(loc=t(0.5, -1.0), concentration=t(0.3, 5.0))),
]
POSITIONS = {"Categorical"}


def attempt(fn):
    try:
        return fn()
    except (NotImplementedError, ValueError, RuntimeError, AttributeError):
        return None


def with_grad(fn, leaves):
    """The value and the gradients of its sum, weighted."""
    y = attempt(fn)
    if y is None:
        return None
    r = {"value": out(y), "grads": {}}
    if y.requires_grad and torch.isfinite(y).all():
        w = torch.arange(1, y.numel() + 1, dtype=y.dtype).reshape(y.shape)
        g = attempt(lambda: torch.autograd.grad((y * w).sum(), list(leaves.values()), allow_unused=True, retain_graph=True))
        for name, value in zip(leaves, g or []):
            if value is not None:
                r["grads"][name] = out(value)
    return r


def leaves_of(kwargs):
    return {k: (v.clone().requires_grad_() if torch.is_tensor(v) and k != "total_count" else v) for k, v in kwargs.items()}


result = {"cases": [], "kl": [], "transforms": []}
for name, kwargs in CASES:
    args = leaves_of(kwargs)
    leaves = {k: v for k, v in args.items() if torch.is_tensor(v) and v.requires_grad}
    d = getattr(D, name)(**args)
    case = {"name": name, "args": {k: out(v) if torch.is_tensor(v) else v for k, v in kwargs.items()}, "fields": {},
            "positions": name in POSITIONS, "batch": list(d.batch_shape), "event": list(d.event_shape)}
    x = d.sample((3,))
    if name in ("Bernoulli", "Poisson", "Binomial", "Geometric", "NegativeBinomial"):
        x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    case["x"] = out(x)
    value = x.clone()
    everything = dict(leaves)
    if not d.support.is_discrete and x.is_floating_point():
        value.requires_grad_()
        everything["x"] = value
    case["log_prob"] = with_grad(lambda: d.log_prob(value), everything)
    case["cdf"] = with_grad(lambda: d.cdf(value), everything) if name not in ("Beta",) else None
    u = torch.rand(3, *d.batch_shape) * 0.9 + 0.05
    case["u"] = out(u)
    case["icdf"] = with_grad(lambda: d.icdf(u), leaves)
    case["entropy"] = with_grad(lambda: d.entropy(), leaves)
    for field in ("mean", "mode", "variance", "stddev"):
        case["fields"][field] = with_grad(lambda: getattr(d, field), leaves)
    if d.has_enumerate_support:
        case["support"] = [out(d.enumerate_support(True)), out(d.enumerate_support(False))]
    result["cases"].append(case)

ARGS = {}
for name, kwargs in CASES:
    ARGS.setdefault(name, kwargs)
OTHER = {
    "Normal": dict(loc=t(0.2, 1.0), scale=t(1.3, 0.7)), "Gamma": dict(concentration=t(1.4, 2.0), rate=t(1.0, 1.5)),
    "Beta": dict(concentration1=t(1.4, 2.0), concentration0=t(0.7, 1.1)), "Exponential": dict(rate=t(1.3, 0.8)),
    "Uniform": dict(low=t(-1.5, 0.2), high=t(2.5, 0.6)), "Binomial": dict(total_count=t(7.0, 6.0), probs=t(0.4, 0.6)),
    "Categorical": dict(probs=t([0.6, 0.4, 0.0])), "Bernoulli": dict(probs=t(0.6, 0.3)), "Poisson": dict(rate=t(1.3, 5.0)),
    "Laplace": dict(loc=t(0.1, 0.3), scale=t(1.3, 0.8)), "Gumbel": dict(loc=t(0.1, 0.3), scale=t(1.3, 0.8)),
    "Pareto": dict(scale=t(0.4, 2.5), alpha=t(1.5, 2.5)), "Cauchy": dict(loc=t(0.1, 0.3), scale=t(1.3, 0.8)),
    "Dirichlet": dict(concentration=t([[1.5, 0.9, 0.3], [1.0, 2.0, 1.0]])), "HalfNormal": dict(scale=t(1.3, 0.4)),
    "ContinuousBernoulli": dict(probs=t(0.7, 0.3)), "Geometric": dict(probs=t(0.5, 0.3)),
    "MultivariateNormal": dict(loc=torch.randn(2, 3), scale_tril=TRIL.flip(0)),
    "LowRankMultivariateNormal": dict(loc=torch.randn(2, 3), cov_factor=W.flip(0), cov_diag=torch.rand(2, 3) + 0.3),
    "LogNormal": dict(loc=t(0.2, 1.0), scale=t(1.3, 0.7)), "OneHotCategorical": dict(probs=t([0.3, 0.4, 0.3])),
}
NAMES = sorted(set(ARGS) & set(OTHER))
for a in NAMES:
    for b in NAMES:
        pa, qa = leaves_of(ARGS[a]), leaves_of(OTHER[b])
        p, q = getattr(D, a)(**pa), getattr(D, b)(**qa)
        leaves = {"p_" + k: v for k, v in pa.items() if torch.is_tensor(v) and v.requires_grad}
        leaves.update({"q_" + k: v for k, v in qa.items() if torch.is_tensor(v) and v.requires_grad})
        r = with_grad(lambda: D.kl_divergence(p, q), leaves)
        if r is not None:
            result["kl"].append({"p": a, "q": b, "p_args": {k: out(v) for k, v in ARGS[a].items()},
                                 "q_args": {k: out(v) for k, v in OTHER[b].items()}, "result": r})

for name, args, x in [
    ("ExpTransform", [], torch.randn(2, 3)), ("SigmoidTransform", [], torch.randn(2, 3)), ("TanhTransform", [], torch.randn(2, 3)),
    ("SoftplusTransform", [], torch.randn(2, 3)), ("AbsTransform", [], torch.randn(2, 3)),
    ("SoftmaxTransform", [], torch.randn(2, 3)), ("StickBreakingTransform", [], torch.randn(2, 3)),
    ("LowerCholeskyTransform", [], torch.randn(2, 3, 3)), ("PositiveDefiniteTransform", [], torch.randn(2, 3, 3)),
    ("CorrCholeskyTransform", [], torch.randn(2, 6)), ("AffineTransform", [0.5, -2.0], torch.randn(2, 3)),
    ("AffineTransform", [0.5, 3.0, 1], torch.randn(2, 3)), ("PowerTransform", [1.7], torch.rand(2, 3) + 0.1),
    ("ReshapeTransform", [[3], [3, 1]], torch.randn(2, 3)),
]:
    tr = getattr(T, name)(*[tuple(v) if isinstance(v, list) else torch.tensor(v) if isinstance(v, float) and name == "PowerTransform" else v for v in args])
    x.requires_grad_()
    r = {"name": name, "args": args, "x": out(x), "y": with_grad(lambda: tr(x), {"x": x})}
    y = tr(x)
    r["back"] = out(tr.inv(y))
    r["log_det"] = with_grad(lambda: tr.log_abs_det_jacobian(x, tr(x)), {"x": x})
    result["transforms"].append(r)

with open(sys.argv[1], "w") as f:
    json.dump(result, f)
print(f"{len(result['cases'])} distributions, {len(result['kl'])} divergences, {len(result['transforms'])} transforms of PyTorch")
