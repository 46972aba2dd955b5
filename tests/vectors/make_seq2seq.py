"""Makes seq2seq.json: a tiny encoder-decoder of PyTorch's nn.Transformer, in f64: its weights under
the project's names, logits, the loss with smoothed labels, and the gradient of every weight.

    python3 make_seq2seq.py          (needs PyTorch; written with 1.13)

Both orders of norm and sub-layer, one source of two padded, 1 encoder and 2 decoder layers.
"""
import json
import math
import os

import torch
import torch.nn.functional as F

C, H, HIDDEN, V, S, T = 8, 2, 12, 11, 5, 4
SOURCE = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
INPUTS = torch.tensor([[10, 5, 8, 9], [10, 7, 0, 0]])
TARGETS = torch.tensor([[5, 8, 9, 10], [7, 10, -1, -1]])
SOURCE_LENGTHS, LENGTHS, SMOOTHING = [5, 3], [4, 2], 0.1


def positions(time):
    table = torch.zeros(time, C, dtype=torch.float64)
    for t in range(time):
        for i in range(0, C, 2):
            table[t, i] = math.sin(t / 10000 ** (i / C))
            table[t, i + 1] = math.cos(t / 10000 ** (i / C))
    return table.float().double()  # the project keeps them in f32


def named(model, table):
    """Our names -> the tensor, or (tensor, first row, last row) of it."""
    names = {"token_embedding.weight": table}
    for stack in ("encoder", "decoder"):
        module = getattr(model, stack)
        for i, layer in enumerate(module.layers):
            at = f"{stack}.blocks.{i}."
            norms = ["norm1", "norm2", "norm3"][:2 if stack == "encoder" else 3]
            for norm in norms:
                for part in ("weight", "bias"):
                    names[at + f"{norm}.{part}"] = getattr(getattr(layer, norm), part)
            for part in ("weight", "bias"):
                names[at + f"attention.qkv.{part}"] = getattr(layer.self_attn, f"in_proj_{part}")
                names[at + f"attention.output.{part}"] = getattr(layer.self_attn.out_proj, part)
                names[at + f"ffn.up.{part}"] = getattr(layer.linear1, part)
                names[at + f"ffn.down.{part}"] = getattr(layer.linear2, part)
                if stack == "decoder":
                    packed = getattr(layer.multihead_attn, f"in_proj_{part}")
                    names[at + f"cross_attention.query.{part}"] = (packed, 0, C)
                    names[at + f"cross_attention.key_value.{part}"] = (packed, C, 3 * C)
                    names[at + f"cross_attention.output.{part}"] = getattr(layer.multihead_attn.out_proj, part)
        if module.norm is not None:
            for part in ("weight", "bias"):
                names[f"{stack}.final_norm.{part}"] = getattr(module.norm, part)
    return names


def held(x):
    return {"shape": list(x.shape), "values": x.detach().flatten().tolist()}


def case(norm_first):
    torch.manual_seed(1)
    model = torch.nn.Transformer(C, H, 1, 2, HIDDEN, dropout=0.0, activation="relu",
                                 batch_first=True, norm_first=norm_first).double()
    if not norm_first:
        model.encoder.norm = model.decoder.norm = None
    table = torch.randn(V, C, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        for p in list(model.parameters()) + [table]:
            p.copy_((torch.randn_like(p) * 0.4 + (p.dim() == 1) * 0.3).round(decimals=3))
    embed = lambda ids: table[ids] * math.sqrt(C) + positions(ids.shape[1])
    source_padding = torch.arange(S)[None] >= torch.tensor(SOURCE_LENGTHS)[:, None]
    padding = torch.arange(T)[None] >= torch.tensor(LENGTHS)[:, None]
    causal = torch.full((T, T), float("-inf"), dtype=torch.float64).triu(1)
    states = model(embed(SOURCE), embed(INPUTS), tgt_mask=causal, src_key_padding_mask=source_padding,
                   tgt_key_padding_mask=padding, memory_key_padding_mask=source_padding)
    logits = states @ table.T
    loss = F.cross_entropy(logits.reshape(-1, V), TARGETS.flatten(), ignore_index=-1,
                           label_smoothing=SMOOTHING)
    loss.backward()
    names = named(model, table)
    part = lambda t, x: x(t) if torch.is_tensor(t) else x(t[0])[t[1]:t[2]]
    return {"placement": "pre" if norm_first else "post", "loss": loss.item(),
            "logits": held(logits),
            "weights": {n: held(part(t, lambda p: p)) for n, t in names.items()},
            "gradients": {n: held(part(t, lambda p: p.grad)) for n, t in names.items()}}


result = {"heads": H, "channels": C, "hidden": HIDDEN, "vocabulary": V, "smoothing": SMOOTHING,
          "source": SOURCE.tolist(), "inputs": INPUTS.tolist(), "targets": TARGETS.tolist(),
          "source_lengths": SOURCE_LENGTHS, "lengths": LENGTHS, "cases": [case(True), case(False)]}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "seq2seq.json"), "w") as file:
    json.dump(result, file)
