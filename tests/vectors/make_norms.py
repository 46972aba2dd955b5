"""Makes norms.json: PyTorch's norm modules, in f64, over several steps of training (those with
running statistics) and one of evaluation.

    python3 make_norms.py          (needs PyTorch; the tests need only the file)

A case holds the module's parameters and its steps. A step holds the input and, for training, a random
gradient of the output; what follows from them: the output, the gradients of the input and of the
parameters (of this step alone), and the running statistics after the step. Inputs are rounded to six
digits so that the file stays small; results have thirteen. Inputs are [B,T,C]; PyTorch sees them as
`arrange` says.
"""
import json
import os

import torch

random = torch.Generator().manual_seed(20240301)
cases = {}


def normal(*shape, scale=1.0, shift=0.0):
    """Normal numbers of six digits: the file holds exactly what was computed with."""
    x = torch.randn(shape, generator=random, dtype=torch.float64) * scale + shift
    return torch.tensor([round(v, 6) for v in x.flatten().tolist()], dtype=torch.float64).view(shape)


def stored(x):
    """Thirteen digits: the tests ask for eleven."""
    return {"shape": list(x.shape), "values": [float(f"{v:.13g}") for v in x.detach().flatten().tolist()]}


def case(name, module, arrange, arrange_back, steps=0, shape=(2, 3, 32), shift=0.0):
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal(*parameter.shape, scale=0.3, shift=0.8))
    held = {"parameters": {key: stored(p) for key, p in module.named_parameters()}, "steps": []}
    for step in range(steps + 1):
        training = step < steps
        module.train(training)
        module.zero_grad()
        x = normal(*shape, shift=shift).requires_grad_()
        dy = normal(*shape)
        y = arrange_back(module(arrange(x)), x)
        y.backward(dy)
        held["steps"].append({
            "training": training,
            "x": stored(x),
            "dy": stored(dy),
            "y": stored(y),
            "dx": stored(x.grad),
            "gradients": {key: stored(p.grad) for key, p in module.named_parameters()},
            "buffers": {key: stored(b) for key, b in module.named_buffers() if b.dtype == torch.float64},
        })
    cases[name] = held


def same(x):
    return x


def back(y, x):
    return y.reshape(x.shape)


def tokens(x):
    """[B,T,C] -> [BT,C]: every token for itself."""
    return x.reshape(-1, x.shape[-1])


def channels_first(x):
    """[B,T,C] -> [B,C,T], the layout of PyTorch's norms over time."""
    return x.transpose(1, 2)


def channels_last(y, x):
    return y.transpose(1, 2)


C = 32
case("layernorm", torch.nn.LayerNorm(C), same, back)
case("layernorm-nobias", torch.nn.LayerNorm(C, bias=False), same, back)
case("layernorm-simple", torch.nn.LayerNorm(C, elementwise_affine=False), same, back)
case("rmsnorm", torch.nn.RMSNorm(C, eps=1e-5), same, back)
case("batchnorm", torch.nn.BatchNorm1d(C), tokens, back, steps=4)
case("batchnorm_far_from_zero", torch.nn.BatchNorm1d(C), tokens, back, steps=2, shift=20)
case("groupnorm", torch.nn.GroupNorm(2, C), tokens, back)
case("groupnorm-time", torch.nn.GroupNorm(2, C), channels_first, channels_last)
case("instancenorm", torch.nn.InstanceNorm1d(C, affine=True), channels_first, channels_last)

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "norms.json")
with open(path, "w", encoding="utf-8") as file:
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(held, separators=(',', ':'))}" for name, held in cases.items())
    file.write(f'{{\n"torch": {json.dumps(torch.__version__)},\n"cases": {{\n{lines}\n}}\n}}\n')
print(f"{path}: {len(cases)} norms, {os.path.getsize(path)} bytes")
