"""Times training steps of PyTorch's GPT-2 on a GPU, as bench_gpu times Tapeformer's.

    python3 bench/pytorch_gpu.py --json bench_gpu.json

The model is compiled, computes in bf16 (autocast, weights in f32) with flash attention, and is updated
by the fused AdamW after clipping. With --json it takes the batch from bench_gpu's result, and prints the
ratio of both.
"""
import argparse
import json
import statistics
import time

from compare_pytorch import make_gpt


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="what bench_gpu --json wrote")
    parser.add_argument("--device", default="cuda", help="cpu tries the program itself")
    for name, value in (("layers", 12), ("heads", 12), ("channels", 768), ("context", 1024),
                        ("batch", 64), ("vocabulary", 50304)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--seconds", type=float, default=20, help="how long steps are timed, at least")
    return parser.parse_args()


def measure(torch, options):
    """Milliseconds of a step, the median, after ten that do not count."""
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    model = make_gpt(torch, vars(options) | {"bias": True}).to(device)
    run = torch.compile(model) if device.type == "cuda" else model
    parameters = list(model.parameters())
    matrices, vectors = ([p for p in parameters if (p.dim() >= 2) == many] for many in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.99), fused=device.type == "cuda")
    tokens = torch.randint(0, options.vocabulary, (options.batch, options.context + 1), device=device)
    tokens, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def start_step():
        """Gives the device a step, and returns what waits for it."""
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = run(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if device.type != "cuda":
            return lambda: None
        done = torch.cuda.Event()
        done.record()
        return done.synchronize

    for _ in range(10 if device.type == "cuda" else 1):
        wait = start_step()
    wait()
    # As in bench_gpu, a step is waited for when the next one is under way.
    wait, steps, now = start_step(), [], time.perf_counter()
    end = now + options.seconds
    while len(steps) < 5 or now < end:
        wait_for_next = start_step()
        wait()
        wait, before, now = wait_for_next, now, time.perf_counter()
        steps.append(1000 * (now - before))
    wait()
    return statistics.median(steps)


def main():
    options = parse_arguments()
    ours = None
    if options.json:
        with open(options.json, encoding="utf-8") as file:
            ours = json.load(file)
        options.batch = ours["batch"]
    import torch

    step = measure(torch, options)
    tokens = 1000 * options.batch * options.context / step
    print(f"PyTorch {torch.__version__}, compiled: step {step:.2f} ms, {tokens:.0f} tokens/s")
    if ours:
        print(f"Tapeformer / PyTorch, in tokens/s: {ours['tokens_per_second'] / tokens:.3f}")


if __name__ == "__main__":
    main()
