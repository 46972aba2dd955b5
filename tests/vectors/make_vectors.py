"""Makes operations.json: what PyTorch computes, in f64, for small inputs of every operation.

    python3 make_vectors.py          (needs PyTorch 2; the tests need only the file)

A case holds named inputs, integer inputs (targets, indices, lengths), the output, a random gradient
of the output, and the gradient of every input that follows from it. Inputs are rounded to six
digits so that the file stays small; results have thirteen.
"""
import json
import math
import os

import torch
import torch.nn.functional as F

random = torch.Generator().manual_seed(20240229)
cases = {}


def normal(*shape, scale=1.0, shift=0.0):
    """Normal numbers of six digits: the file holds exactly what was computed with."""
    x = torch.randn(shape, generator=random, dtype=torch.float64) * scale + shift
    return torch.tensor([round(v, 6) for v in x.flatten().tolist()], dtype=torch.float64).view(shape)


def integers(high, *shape):
    return torch.randint(0, high, shape, generator=random)


def stored(x):
    """Thirteen digits: the tests ask for eleven."""
    values = x.detach().flatten().tolist()
    if x.dtype == torch.float64:
        values = [float(f"{v:.13g}") for v in values]
    return {"shape": list(x.shape), "values": values}


def case(name, f, inputs, integer_inputs=None):
    integer_inputs = integer_inputs or {}
    leaves = {key: x.clone().requires_grad_() for key, x in inputs.items()}
    output = f(**leaves, **integer_inputs)
    output_gradient = normal(*output.shape)
    output.backward(output_gradient)
    cases[name] = {
        "inputs": {key: stored(x) for key, x in inputs.items()},
        "integers": {key: stored(x) for key, x in integer_inputs.items()},
        "output": stored(output),
        "output_gradient": stored(output_gradient),
        "gradients": {key: stored(x.grad) for key, x in leaves.items()},
    }


# ---- Element-wise functions, also where they saturate.
points = torch.cat([normal(28), normal(4, scale=8), torch.tensor([0.0, -0.5, 3.0], dtype=torch.float64)])
case("gelu", F.gelu, {"input": points})
case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), {"x": points})
case("silu", F.silu, {"input": points})
case("sigmoid", torch.sigmoid, {"input": points})
case("tanh", torch.tanh, {"input": points})


def swiglu(x):
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


case("swiglu", swiglu, {"x": normal(3, 2 * 19)})

# ---- Softmax.
for dim in (-1, 0):
    suffix = "" if dim == -1 else "_over_rows"
    case("softmax" + suffix, lambda x: F.softmax(x, dim=dim), {"x": normal(4, 19, scale=3)})
    case("log_softmax" + suffix, lambda x: F.log_softmax(x, dim=dim), {"x": normal(4, 19, scale=3)})

# ---- Norms. The second input's rows lie far from zero: variance by subtraction would fail.
for suffix, shift in (("", 0), ("_far_from_zero", 50)):
    case(
        "layer_norm" + suffix,
        lambda x, gamma, beta: F.layer_norm(x, x.shape[-1:], gamma, beta, 1e-5),
        {"x": normal(2, 3, 33, shift=shift), "gamma": normal(33, scale=0.3, shift=1), "beta": normal(33)},
    )
case("layer_norm_plain", lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-5), {"x": normal(3, 31)})
case(
    "rms_norm",
    lambda x, gamma: F.rms_norm(x, x.shape[-1:], gamma, 1e-5),
    {"x": normal(2, 3, 33), "gamma": normal(33, scale=0.3, shift=1)},
)

# ---- Products.
case("linear", F.linear, {"input": normal(2, 5, 17), "weight": normal(7, 17), "bias": normal(7)})
case("linear_no_bias", F.linear, {"input": normal(9, 13), "weight": normal(6, 13)})
case("matmul", torch.matmul, {"input": normal(3, 5, 7), "other": normal(3, 7, 4)})
case("matmul_transposed", lambda a, b: a.mT @ b.mT, {"a": normal(2, 7, 5), "b": normal(2, 4, 7)})
case("matmul_shared", torch.matmul, {"input": normal(2, 3, 5), "other": normal(5, 6)})


# ---- Attention. q [B,T,H,D], k and v [B,S,K,D]; query t sees the keys up to t + S - T.
def attention(q, k, v, lengths=None, causal=False):
    T, S, repeats = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(repeats, dim=2) for x in (k, v))
    mask = torch.ones(q.shape[0], 1, T, S, dtype=torch.bool)
    if causal:
        mask = mask.tril(S - T)
    if lengths is not None:
        mask = mask & (torch.arange(S) < lengths[:, None, None, None])
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def attention_case(name, queries, keys, heads, kv_heads, causal, lengths=None, B=2, D=5):
    inputs = {
        "q": normal(B, queries, heads, D),
        "k": normal(B, keys, kv_heads, D),
        "v": normal(B, keys, kv_heads, D),
    }
    padding = {} if lengths is None else {"lengths": torch.tensor(lengths)}
    case(name, lambda **given: attention(**given, causal=causal), inputs, padding)


attention_case("attention", 6, 9, 2, 2, causal=False)
attention_case("attention_causal", 9, 9, 2, 2, causal=True)
attention_case("attention_causal_later_queries", 4, 9, 2, 2, causal=True)
attention_case("attention_grouped", 7, 7, 4, 2, causal=True)
attention_case("attention_one_kv_head", 7, 5, 3, 1, causal=False)
attention_case("attention_padded", 6, 9, 2, 2, causal=False, lengths=[9, 4])
attention_case("attention_causal_padded", 8, 8, 2, 1, causal=True, lengths=[3, 8])
attention_case("attention_causal_long", 71, 71, 1, 1, causal=True, B=1, D=3)


def rotary(x, start=0, base=10000.0):
    """Pairs (i, i + D/2), as LLaMA's code does. x [B,T,H,D]."""
    T, D = x.shape[1], x.shape[3]
    frequencies = base ** (-torch.arange(0, D, 2, dtype=x.dtype) / D)
    angles = torch.outer(torch.arange(start, start + T, dtype=x.dtype), frequencies)
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1)[:, None, :] for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


case("rotary", rotary, {"x": normal(2, 7, 3, 6)})
case("rotary_from_100", lambda x: rotary(x, start=100), {"x": normal(1, 5, 2, 8)})

# ---- Embedding and loss.
case("embedding", lambda table, indices: F.embedding(indices, table), {"table": normal(7, 5)},
     {"indices": integers(6, 3, 4)})
targets = integers(13, 9)
ignoring = targets.clone()
ignoring[2] = ignoring[7] = -1
for name, given, options in (
    ("cross_entropy", targets, {}),
    ("cross_entropy_ignoring", ignoring, {"ignore_index": -1}),
    ("cross_entropy_smoothed", targets, {"label_smoothing": 0.1}),
    ("cross_entropy_ignoring_smoothed", ignoring, {"ignore_index": -1, "label_smoothing": 0.1}),
):
    case(name, lambda logits, targets: F.cross_entropy(logits, targets, **options),
         {"logits": normal(9, 13, scale=3)}, {"targets": given})
case(
    "linear_cross_entropy",
    lambda x, weight, targets: F.cross_entropy(x @ weight.T, targets, ignore_index=-1),
    {"x": normal(9, 11), "weight": normal(13, 11)},
    {"targets": ignoring},
)


# ---- Optimizers: the gradients of each step, and where the parameters are after it. The first
# parameter decays, the second does not.
def optimizer_case(make, max_norm=0.0):
    initial = {"weight": normal(5, 7), "bias": normal(7)}
    leaves = {key: x.clone().requires_grad_() for key, x in initial.items()}
    optimizer = make([{"params": [leaves["weight"]]}, {"params": [leaves["bias"]], "weight_decay": 0.0}])
    steps = []
    for scale in (1.0, 0.1, 3.0):
        gradients = {key: normal(*x.shape, scale=scale) for key, x in initial.items()}
        for key, x in leaves.items():
            x.grad = gradients[key].clone()
        limit = max_norm if max_norm > 0 else math.inf
        norm = torch.nn.utils.clip_grad_norm_(leaves.values(), limit)
        optimizer.step()
        steps.append({
            "gradients": {key: stored(x) for key, x in gradients.items()},
            "norm": norm.item(),
            "parameters": {key: stored(x) for key, x in leaves.items()},
        })
    return {"initial": {key: stored(x) for key, x in initial.items()}, "steps": steps}


def adamw(groups):
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)


optimizers = {
    "adamw": optimizer_case(adamw),
    "adamw_clipped": optimizer_case(adamw, max_norm=1.0),
    "sgd": optimizer_case(lambda groups: torch.optim.SGD(groups, lr=0.1)),
    "sgd_momentum": optimizer_case(
        lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "sgd_clipped": optimizer_case(lambda groups: torch.optim.SGD(groups, lr=0.1), max_norm=2.0),
}

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "operations.json")
with open(path, "w", encoding="utf-8") as file:
    parts = [f'"torch": {json.dumps(torch.__version__)}']
    for title, group in (("cases", cases), ("optimizers", optimizers)):
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(held, separators=(',', ':'))}" for name, held in group.items())
        parts.append(f'"{title}": {{\n{lines}\n}}')
    file.write("{\n" + ",\n".join(parts) + "\n}\n")
print(f"{path}: {len(cases)} operations, {len(optimizers)} optimizers, {os.path.getsize(path)} bytes")
