"""Times whole training steps of Tapeformer and PyTorch, alternating, and prints their ratio.

    python3 bench/compare_pytorch.py --build build --python /usr/bin/python3 venv/bin/python --compile

A step is forward, backward, clipping to norm 1 and AdamW, for the settings of bench_train. Every
measurement is a process of its own; the rounds go ours, theirs, ours, theirs, so that a slow minute
of the machine meets both, and the ratio is the median over rounds. PyTorch gets its best: fused
attention where it has it, the fastest of its AdamW implementations, and, where it computes with the
system's BLAS, the OpenMP build of OpenBLAS and a malloc told to keep its memory.
"""
import argparse
import functools
import glob
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SETTINGS = {
    "tiny": dict(layers=4, heads=4, channels=128, context=64, batch=12, vocabulary=65),
    "baby": dict(layers=6, heads=6, channels=384, context=256, batch=16, vocabulary=65),
    "gpt2": dict(layers=12, heads=12, channels=768, context=64, batch=4, vocabulary=50257),
    "gpt2-256": dict(layers=12, heads=12, channels=768, context=256, batch=4, vocabulary=50257),
}


# ---------------------------------------------------------------- one measurement of PyTorch


def make_gpt(torch, s):
    """The model of bench_train: GPT-2 without dropout and, unless s["bias"], biases of linear maps."""
    nn, F = torch.nn, torch.nn.functional
    C, H = s["channels"], s["heads"]
    linear = functools.partial(nn.Linear, bias=s.get("bias", False))
    fused_attention = hasattr(F, "scaled_dot_product_attention")

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.output = linear(C, 3 * C), linear(C, C)
            if not fused_attention:
                mask = torch.ones(s["context"], s["context"], dtype=torch.bool).triu(1)
                self.register_buffer("mask", mask)

        def forward(self, x):
            B, T, _ = x.shape
            q, k, v = (y.view(B, T, H, C // H).transpose(1, 2) for y in self.qkv(x).split(C, dim=2))
            if fused_attention:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(-2, -1)) * (C // H) ** -0.5
                y = F.softmax(scores.masked_fill(self.mask, float("-inf")), dim=-1) @ v
            return self.output(y.transpose(1, 2).reshape(B, T, C))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.attention, self.norm2 = nn.LayerNorm(C), Attention(), nn.LayerNorm(C)
            self.ffn = nn.Sequential(linear(C, 4 * C), nn.GELU(approximate="tanh"), linear(4 * C, C))

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.ffn(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.token_embedding = nn.Embedding(s["vocabulary"], C)
            self.position_embedding = nn.Embedding(s["context"], C)
            self.blocks = nn.Sequential(*(Block() for _ in range(s["layers"])))
            self.final_norm = nn.LayerNorm(C)
            for name, parameter in self.named_parameters():
                if parameter.dim() >= 2:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, targets):
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.token_embedding(tokens) + self.position_embedding(positions)
            logits = F.linear(self.final_norm(self.blocks(x)), self.token_embedding.weight)
            return F.cross_entropy(logits.view(-1, s["vocabulary"]), targets.view(-1))

    return GPT()


def fastest_update(torch, parameters):
    """Clipping and AdamW in the variant that is fastest here; the gradients are filled already."""
    matrices, vectors = ([p for p in parameters if (p.dim() >= 2) == many] for many in (True, False))

    def make(adamw, clip):
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.99), **adamw)

        def update():
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, **clip)
            optimizer.step()

        return update

    fused, foreach, plain = {"fused": True}, {"foreach": True}, {}
    times = []
    for variant in ((fused, foreach), (fused, plain), (foreach, foreach), (foreach, plain), (plain, plain)):
        update = None  # frees the moments of the one before
        try:
            update = make(*variant)
            times.append((min([timed(update) for _ in range(4)][1:]), len(times), variant))
        except (TypeError, ValueError, RuntimeError, NotImplementedError):
            continue  # this version has no such variant
    update = None
    return make(*min(times)[2])


def timed(f):
    start = time.perf_counter()
    f()
    return 1000 * (time.perf_counter() - start)


def measure_pytorch(setting, threads, seconds, compiled):
    """Medians over the steps of about `seconds`, after three that do not count."""
    import torch

    s = SETTINGS[setting]
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    model = make_gpt(torch, s)
    run = torch.compile(model) if compiled else model
    parameters = list(model.parameters())
    tokens = torch.randint(0, s["vocabulary"], (s["batch"], s["context"] + 1))
    tokens, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    run(tokens, targets).backward()
    update = fastest_update(torch, parameters)

    def step():
        for parameter in parameters:
            parameter.grad = None
        marks = [time.perf_counter()]
        loss = run(tokens, targets)
        loss.item()
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        update()
        marks.append(time.perf_counter())
        return marks

    for _ in range(3):
        step()
    steps, end = [], time.perf_counter() + seconds
    while len(steps) < 5 or time.perf_counter() < end:
        steps.append(step())
    result = {
        name + "_ms": 1000 * statistics.median(marks[to] - marks[begin] for marks in steps)
        for name, begin, to in (("forward", 0, 1), ("backward", 1, 2), ("optimizer", 2, 3), ("step", 0, 3))
    }
    result["tokens_per_second"] = 1000 * s["batch"] * s["context"] / result["step_ms"]
    result["resident_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return result


# ---------------------------------------------------------------- who takes part, and the rounds


def environment(threads, tuned=False):
    """This process's, without the variables that hold OpenBLAS back."""
    result = {key: value for key, value in os.environ.items()
              if key not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    result["OMP_NUM_THREADS"] = str(threads)
    if tuned:
        for folder in glob.glob("/usr/lib/*/openblas-openmp")[:1]:
            result["LD_LIBRARY_PATH"] = folder + ":" + result.get("LD_LIBRARY_PATH", "")
        result["MALLOC_MMAP_MAX_"] = "0"
        result["MALLOC_MMAP_THRESHOLD_"] = str(1 << 36)
        result["MALLOC_TRIM_THRESHOLD_"] = str(1 << 36)
        result["MALLOC_TOP_PAD_"] = str(1 << 28)
    return result


def run(command, env):
    """Runs a command that leaves one JSON object in the file named by its last argument."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        done = subprocess.run(command + ["--json", path], env=env, capture_output=True, text=True)
        if done.returncode != 0 or not os.path.exists(path):
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise RuntimeError(f"{command[0]} ended with code {done.returncode}: {last}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def pytorch_contestants(options):
    """A name, a command and an environment for each interpreter that has PyTorch, and for each way."""
    probe = ("import json, torch; print(json.dumps([torch.__version__, hasattr(torch, 'compile'), "
             "'BLAS_INFO=mkl' not in torch.__config__.show()]))")
    found = []
    for python in options.python:
        try:
            done = subprocess.run([python, "-c", probe], capture_output=True, text=True)
        except OSError as error:
            raise SystemExit(f"compare_pytorch: cannot run {python}: {error.strerror}")
        if done.returncode != 0:
            print(f"{python} has no PyTorch, so it is left out.")
            continue
        version, compiles, system_blas = json.loads(done.stdout)
        tuned = options.tune == "always" or (options.tune == "auto" and system_blas)
        command = [python, os.path.abspath(__file__), "--threads", str(options.threads),
                   "--seconds", str(options.seconds)]
        env = environment(options.threads, tuned)
        name = f"PyTorch {version}" + (" tuned" if tuned else "")
        if any(name == other for other, _, _ in found):
            name += " " + python
        found.append((name, command + ["--worker", "eager"], env))
        if options.compile and compiles:
            found.append((name + " compiled", command + ["--worker", "compiled"], env))
    return found


def compare(setting, contestants, rounds):
    """Runs the rounds of one setting and prints what came out."""
    results = {name: [] for name, _, _ in contestants}
    for _ in range(rounds):
        for name, command, env in contestants:
            if results[name] is None:
                continue
            try:
                results[name].append(run(command + ["--setting", setting], env))
            except RuntimeError as error:
                if name == "Tapeformer":
                    raise SystemExit(f"compare_pytorch: {error}")
                print(f"{setting}: {name} is left out: {error}")
                results[name] = None
    print_results(setting, {name: held for name, held in results.items() if held})


def print_results(setting, results):
    """Medians over the rounds; a floor is the time of a step's matrix products and AdamW's traffic."""
    ours = results.get("Tapeformer")
    floor = statistics.median(result["floor_ms"] for result in ours) if ours else None
    print(f"\n{setting:34}{'step ms':>9}{'forward':>9}{'backward':>9}{'optimizer':>10}{'tokens/s':>10}"
          f"{'MB':>7}{'floors':>8}{'ours/theirs':>13}")
    for name, held in results.items():
        median = {key: statistics.median(result[key] for result in held)
                  for key in ("step_ms", "forward_ms", "backward_ms", "optimizer_ms",
                              "tokens_per_second", "resident_bytes")}
        floors = f"{median['step_ms'] / floor:.2f}" if ours else ""
        ratio = ""
        if ours and name != "Tapeformer":
            ratio = f"{statistics.median(a['step_ms'] / b['step_ms'] for a, b in zip(ours, held)):.3f}"
        print(f"{name:34}{median['step_ms']:9.1f}{median['forward_ms']:9.1f}{median['backward_ms']:9.1f}"
              f"{median['optimizer_ms']:10.1f}{median['tokens_per_second']:10.0f}"
              f"{median['resident_bytes'] / 1e6:7.0f}{floors:>8}{ratio:>13}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="the build folder that holds bench/bench_train")
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="PATH",
                        help="interpreters whose PyTorch takes part (default: this one)")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile, where there is one")
    parser.add_argument("--tune", choices=("auto", "always", "never"), default="auto",
                        help="OpenMP OpenBLAS and a malloc that keeps memory for PyTorch; auto: where it "
                             "computes with the system's BLAS")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME",
                        help="of " + ", ".join(SETTINGS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="length of each measurement")
    parser.add_argument("--only-pytorch", action="store_true", help="leave Tapeformer out")
    for hidden in ("--worker", "--setting", "--json"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.worker:
        result = measure_pytorch(options.setting, options.threads, options.seconds,
                                 options.worker == "compiled")
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file)
        return
    contestants = []
    if not options.only_pytorch:
        program = os.path.join(options.build, "bench", "bench_train")
        if not os.path.exists(program):
            raise SystemExit(f"compare_pytorch: {program} is missing; build it, or name the folder with --build")
        command = [program, "--threads", str(options.threads), "--rounds", "1",
                   "--seconds", str(options.seconds)]
        contestants.append(("Tapeformer", command, environment(options.threads)))
    contestants += pytorch_contestants(options)
    if all(name == "Tapeformer" for name, _, _ in contestants):
        print("No PyTorch was found, so Tapeformer is measured alone.")
    for setting in options.settings:
        compare(setting, contestants, options.rounds)


if __name__ == "__main__":
    main()
