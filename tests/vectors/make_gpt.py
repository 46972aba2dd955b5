"""Makes gpt.json and the safetensors beside it: a tiny GPT in PyTorch, its gradients and ten losses.

    python3 make_gpt.py              (needs PyTorch 2; the tests need only the files)

Two shapes: GPT-2 (learned positions, LayerNorm, GELU in tanh form, biases, tied output) and LLaMA
(rotary positions, RMSNorm, SwiGLU, grouped key-value heads, no biases, untied output). Per shape,
SHAPE_weights.safetensors holds the initial weights in f32 and SHAPE_gradients.safetensors the
gradient of every parameter at the first step in f64; gpt.json holds the configuration, ten batches
of tokens, and the losses and gradient norms of ten AdamW steps in f64 and in f32.
"""
import json
import os
import struct
from array import array

import torch
import torch.nn as nn
import torch.nn.functional as F

SHARED = dict(layers=2, heads=4, channels=32, vocabulary=17, context=16, batch=3)
SHAPES = {
    "gpt2": dict(SHARED, llama=False, kv_heads=4, hidden=128),
    "llama": dict(SHARED, llama=True, kv_heads=2, hidden=86),
}
TRAINING = dict(lr=1e-2, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.1, clip=1.0, steps=10)
FOLDER = os.path.dirname(os.path.abspath(__file__))


def rotary(x, base=10000.0):
    """Turns the pairs (i, i + D/2) of x [B,H,T,D] by t base^(-2i/D)."""
    T, D = x.shape[-2:]
    frequencies = base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.outer(torch.arange(T, dtype=torch.float64), frequencies)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.D = c, c["channels"] // c["heads"]
        self.qkv = nn.Linear(c["channels"], (c["heads"] + 2 * c["kv_heads"]) * self.D, bias=not c["llama"])
        self.output = nn.Linear(c["channels"], c["channels"], bias=not c["llama"])

    def forward(self, x):
        B, T, C = x.shape
        heads, kv_heads = self.c["heads"], self.c["kv_heads"]
        q, k, v = self.qkv(x).split([heads * self.D, kv_heads * self.D, kv_heads * self.D], dim=-1)
        q, k, v = (y.view(B, T, -1, self.D).transpose(1, 2) for y in (q, k, v))
        if self.c["llama"]:
            q, k = rotary(q), rotary(k)
        k, v = (y.repeat_interleave(heads // kv_heads, dim=1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(B, T, C))


class FFN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.llama = c["llama"]
        self.up = nn.Linear(c["channels"], c["hidden"] * (2 if self.llama else 1), bias=not self.llama)
        self.down = nn.Linear(c["hidden"], c["channels"], bias=not self.llama)

    def forward(self, x):
        x = self.up(x)
        if self.llama:
            gate, value = x.chunk(2, dim=-1)
            return self.down(F.silu(gate) * value)
        return self.down(F.gelu(x, approximate="tanh"))


def norm(c):
    return nn.RMSNorm(c["channels"], eps=1e-5) if c["llama"] else nn.LayerNorm(c["channels"], eps=1e-5)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.ffn = norm(c), Attention(c), norm(c), FFN(c)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.token_embedding = nn.Embedding(c["vocabulary"], c["channels"])
        self.position_embedding = None if c["llama"] else nn.Embedding(c["context"], c["channels"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.final_norm = norm(c)
        self.output = nn.Linear(c["channels"], c["vocabulary"], bias=False) if c["llama"] else None

    def loss(self, tokens, targets):
        x = self.token_embedding(tokens)
        if self.position_embedding is not None:
            x = x + self.position_embedding(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        head = self.token_embedding if self.output is None else self.output
        logits = self.final_norm(x) @ head.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initial_weights(model, random):
    """Gains about one, everything else about zero; large enough that no part of the model sleeps."""
    weights = {}
    for name, parameter in model.named_parameters():
        gain = "norm" in name and name.endswith("weight")
        weights[name] = torch.randn(parameter.shape, generator=random) * 0.15 + (1.0 if gain else 0.0)
    return weights


def make_batches(c, random):
    """Sequences in which a token mostly follows from the one before: there is something to learn."""
    batches = []
    for _ in range(TRAINING["steps"]):
        rows = [torch.randint(0, c["vocabulary"], (c["batch"],), generator=random)]
        for _ in range(c["context"]):
            surprise = torch.randint(0, c["vocabulary"], (c["batch"],), generator=random)
            surprised = torch.rand(c["batch"], generator=random) < 0.2
            rows.append(torch.where(surprised, surprise, (3 * rows[-1] + 5) % c["vocabulary"]))
        batches.append(torch.stack(rows, dim=1))
    return batches


def train(c, weights, batches, dtype):
    """Losses and gradient norms (before clipping) of ten steps, and the first step's gradients."""
    model = GPT(c).to(dtype)
    model.load_state_dict({name: weight.to(dtype) for name, weight in weights.items()})
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": TRAINING["weight_decay"]},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=TRAINING["lr"], betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["epsilon"])
    losses, norms, first = [], [], None
    for batch in batches:
        optimizer.zero_grad()
        loss = model.loss(batch[:, :-1], batch[:, 1:])
        loss.backward()
        first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, TRAINING["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, first


def write_safetensors(path, tensors):
    """Eight bytes of header length, a JSON header, and the values, little-endian, one after the other."""
    header, data = {}, bytearray()
    for name, x in tensors.items():
        letter, title = ("d", "F64") if x.dtype == torch.float64 else ("f", "F32")
        begin = len(data)
        data += array(letter, x.flatten().tolist()).tobytes()
        header[name] = {"dtype": title, "shape": list(x.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    torch.manual_seed(1)
    held = {"torch": torch.__version__, "training": TRAINING}
    for name, c in SHAPES.items():
        random = torch.Generator().manual_seed(7)
        weights = initial_weights(GPT(c), random)
        batches = make_batches(c, random)
        losses, norms, gradients = train(c, weights, batches, torch.float64)
        losses_f32, norms_f32, _ = train(c, weights, batches, torch.float32)
        write_safetensors(os.path.join(FOLDER, name + "_weights.safetensors"), weights)
        write_safetensors(os.path.join(FOLDER, name + "_gradients.safetensors"), gradients)
        held[name] = {
            "config": c,
            "batches": [batch.tolist() for batch in batches],
            "losses": {"f64": losses, "f32": losses_f32},
            "gradient_norms": {"f64": norms, "f32": norms_f32},
        }
        print(name, sum(w.numel() for w in weights.values()), "parameters, losses", losses,
              "worst f32 against f64", max(abs(a / b - 1) for a, b in zip(losses_f32, losses)),
              max(abs(a / b - 1) for a, b in zip(norms_f32, norms)))
    with open(os.path.join(FOLDER, "gpt.json"), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in held.items()) + "\n}\n")


main()
