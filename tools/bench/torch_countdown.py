#!/usr/bin/env python3
"""The Countdown task in plain synchronous PyTorch: what Weir is measured against.

One process, one loop: generate a batch, score it, train on it, begin again. It is written to be fast within that shape,
so that a comparison means something: answers to all tasks come from one batch with a KV cache, each prompt is run once
for all of its samples, rows that have ended leave the batch, the loss has no loop over samples, the optimizer is AdamW
over lists of tensors (`foreach`), and freed memory is kept for the next step.

Same task, model, objective and settings as Weir: prompts, answers, rewards and the split of the tasks are those of
actors/environment/src/countdown.cpp (the same seed holds back the same tasks), the model is Qwen3's, the update is PPO's
clipped surrogate with GRPO's advantages. Needs PyTorch 1.13 or later and numpy; runs on the CPU.

The last line on stdout is one JSON object. Times are means over the steps after the first two: `generate_s` is drawing
tasks, generation and scoring, `train_s` is the rest of the step, `samples_per_s` counts both. What happens meanwhile
goes to stderr.
"""

import argparse
import ctypes
import itertools
import json
import os
import re
import sys
import time
from pathlib import Path

VOCABULARY = "0123456789+-*=:; "
TOKEN_OF = {character: index for index, character in enumerate(VOCABULARY)}
END = TOKEN_OF[";"]
WELL_FORMED = re.compile("[1-9][-+*][1-9][-+*][1-9];")
MASK64 = (1 << 64) - 1


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--threads", type=int, default=1, help="of PyTorch and of its BLAS")
    p.add_argument("--warm-steps", type=int, default=0, help="supervised steps before reinforcement learning")
    p.add_argument("--steps", type=int, default=20, help="reinforcement learning steps; at least 3 give a timing")
    p.add_argument("--tasks", type=int, default=64, help="tasks a step")
    p.add_argument("--samples", type=int, default=8, help="answers a task: the group")
    p.add_argument("--passes", type=int, default=1, help="optimizer steps on each batch")
    p.add_argument("--lr", type=float, default=2e-4, help="learning rate of reinforcement learning")
    p.add_argument("--micro", type=int, default=128, help="sequences whose activations are held at once")
    p.add_argument("--max-tokens", type=int, default=8, help="length of an answer, its end included")
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--skip-zero-advantage", action="store_true",
                   help="do not compute sequences whose group has equal rewards: they have no gradient")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--eval", action="store_true", help="greedy accuracy on held-back tasks at the end")
    p.add_argument("--eval-count", type=int, default=512)
    p.add_argument("--model", type=Path, help="start from this Hugging Face directory (17 tokens, tied embeddings)")
    p.add_argument("--check", type=Path, metavar="DIR",
                   help="compare with DIR/golden.safetensors (logits, greedy tokens, three AdamW steps) and exit")
    return p.parse_args()


args = arguments()
# BLAS libraries read these when they are loaded; torch.set_num_threads does not reach a BLAS with threads of its own.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(args.threads)

# Keep freed memory instead of giving it back and faulting it in again each step (glibc).
libc = ctypes.CDLL(None)
if hasattr(libc, "mallopt"):
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

# --- The task -----------------------------------------------------------------------------------------------------


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


class RandomStream:
    """weir::random_stream, seeded as weir::derive_seed(seed, name): the split of the tasks is then the same."""

    def __init__(self, seed, name):
        self.state = mix64(seed & MASK64)
        for byte in name.encode():
            self.state = mix64(self.state ^ byte)

    def below(self, n):
        bits = mix64((self.state * 0xD1342543DE82EF95 + 1) & MASK64)
        self.state = (self.state + 1) & MASK64
        return (bits * n) >> 64


def solvable_tasks():
    """{(sorted digits, target): the answers}, in the order of the keys."""
    found = {}
    for digits in itertools.combinations_with_replacement(range(1, 10), 3):
        answers = {}
        for (a, b, c), first, second in itertools.product(sorted(set(itertools.permutations(digits))), "+-*", "+-*"):
            text = f"{a}{first}{b}{second}{c}"
            answers.setdefault(eval(text), []).append(text + ";")
        for target in sorted(t for t in answers if 0 <= t <= 99):
            found[digits, target] = answers[target]
    return found


def split_tasks(families, eval_count, seed):
    """Lists of (prompt, family) to train on and to evaluate on; no prompt is in both."""
    order = [("%d%d%d=%d:" % (a, b, c, target), (tuple(sorted((a, b, c))), target))
             for a, b, c in itertools.product(range(1, 10), repeat=3) for target in range(100)
             if (tuple(sorted((a, b, c))), target) in families]
    random = RandomStream(seed, "countdown tasks")
    for i in range(len(order), 1, -1):
        j = random.below(i)
        order[i - 1], order[j] = order[j], order[i - 1]
    if eval_count >= len(order):
        sys.exit(f"--eval-count: there are {len(order)} tasks, and some must be left to train on")
    return order[eval_count:], order[:eval_count]


def endless(tasks, rng):
    """Each epoch another order of all tasks."""
    while True:
        for i in rng.permutation(len(tasks)):
            yield tasks[i]


def encode_prompts(tasks):
    """Token ids [tasks, width], padded on the left, and the number of padding tokens of each row."""
    width = max(len(prompt) for prompt, _ in tasks)
    ids = torch.tensor([[TOKEN_OF[c] for c in prompt.rjust(width)] for prompt, _ in tasks])
    return ids, torch.tensor([width - len(prompt) for prompt, _ in tasks])


def rewards_of(answers, lengths, tasks, families):
    """1 for a right answer, 0.1 for a well-formed wrong one, else 0. `tasks` has one entry an answer."""
    out = []
    for tokens, length, (_, family) in zip(answers.tolist(), lengths.tolist(), tasks):
        text = "".join([VOCABULARY[t] for t in tokens[:length]])
        out.append(1.0 if text in families[family] else 0.1 if WELL_FORMED.fullmatch(text) else 0.0)
    return torch.tensor(out)


# --- The model ----------------------------------------------------------------------------------------------------

SMALL_CONFIG = {"vocab_size": len(VOCABULARY), "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 256, "max_position_embeddings": 64,
                "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "initializer_range": 0.02, "tie_word_embeddings": True}


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, inner, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        self.heads, self.kv_heads, self.d, self.eps = c["num_attention_heads"], c["num_key_value_heads"], d, c["rms_norm_eps"]

        def matrix(rows, columns):
            return nn.Parameter(torch.randn(rows, columns) * c["initializer_range"])

        self.input_norm, self.post_norm = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.qkv = matrix((self.heads + 2 * self.kv_heads) * d, hidden)
        self.o = matrix(hidden, self.heads * d)
        self.gate, self.up = matrix(inner, hidden), matrix(inner, hidden)
        self.down = matrix(hidden, inner)

    def attention(self, x, rope, mask, cache, start):
        rows, length, _ = x.shape
        heads, kv, d = self.heads, self.kv_heads, self.d
        qk, v = F.linear(x, self.qkv).view(rows, length, -1, d).split([heads + kv, kv], 2)
        # One pass over queries and keys; the queries' weight carries the scale of the scores.
        weight = torch.cat(((self.q_norm * d**-0.5).expand(heads, d), self.k_norm.expand(kv, d)))
        q, k = rotate(rms_norm(qk, weight, self.eps), *rope).split([heads, kv], 2)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            cache[0][:, :, start:start + length], cache[1][:, :, start:start + length] = k, v
            k, v = cache[0][:, :, :start + length], cache[1][:, :, :start + length]
        # The query heads of one key head stand below each other: no copy of keys and values.
        q = q.view(rows, length, kv, -1, d).permute(0, 2, 3, 1, 4).reshape(rows, kv, -1, d)
        # One query a row: a product and a sum, since many products of tiny matrices are slow on the CPU.
        one = length == 1
        scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) if one else q @ k.transpose(2, 3)
        scores = scores.view(rows, kv, -1, length, k.shape[2]) + mask
        share = torch.softmax(scores, -1).view(rows, kv, -1, k.shape[2])
        mixed = (share.unsqueeze(-1) * v.unsqueeze(2)).sum(3) if one else share @ v
        mixed = mixed.view(rows, kv, -1, length, d).permute(0, 3, 1, 2, 4)
        return F.linear(mixed.reshape(rows, length, heads * d), self.o)

    def forward(self, x, rope, mask, cache=None, start=0):
        x = x + self.attention(rms_norm(x, self.input_norm, self.eps), rope, mask, cache, start)
        y = rms_norm(x, self.post_norm, self.eps)
        gate, up = F.linear(y, self.gate), F.linear(y, self.up)  # apart: joined, the backward pass would copy them together
        return x + F.linear(F.silu(gate) * up, self.down)


class CausalLM(nn.Module):
    """Qwen3 with tied embeddings. Rows may be padded on either side: `valid` says which keys count."""

    def __init__(self, c):
        super().__init__()
        if not c["tie_word_embeddings"]:
            sys.exit("the model's embeddings are not tied; this script knows tied ones only")
        self.config = c
        self.embed = nn.Parameter(torch.randn(c["vocab_size"], c["hidden_size"]) * c["initializer_range"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(c["hidden_size"]))
        theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
        frequencies = theta ** (-torch.arange(0, c["head_dim"], 2, dtype=torch.float32) / c["head_dim"])
        angles = torch.outer(torch.arange(c["max_position_embeddings"], dtype=torch.float32), frequencies).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def new_cache(self, rows, capacity):
        c = self.config
        shape = (2, rows, c["num_key_value_heads"], capacity, c["head_dim"])
        return [torch.empty(shape) for _ in self.layers]

    def forward(self, ids, valid, cache=None, start=0):
        """Hidden states [rows, length, hidden] of `ids`, the columns from `start` on. `valid` [rows, start + length]."""
        length = ids.shape[1]
        positions = (valid.cumsum(1) - 1).clamp_(min=0)[:, start:]
        rope = self.cos[positions].unsqueeze(2), self.sin[positions].unsqueeze(2)
        seen = torch.ones(length, start + length, dtype=torch.bool).tril(start)
        # Finite, so that a padding query, which sees nothing, gives no NaN.
        mask = torch.zeros(len(ids), length, start + length).masked_fill_(~(seen & valid[:, None]), -1e9)[:, None, None]
        x = F.embedding(ids, self.embed)
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, mask, None if cache is None else cache[i], start)
        return x

    def head(self, x):
        return F.linear(rms_norm(x, self.norm, self.config["rms_norm_eps"]), self.embed)


def read_safetensors(path):
    raw = np.fromfile(path, dtype=np.uint8)
    begin = 8 + int(raw[:8].view("<u8")[0])
    out = {}
    for name, entry in json.loads(raw[8:begin].tobytes()).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        data = raw[begin + first:begin + last].tobytes()
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}[entry["dtype"]])
        values = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
        out[name] = torch.from_numpy(values.reshape(entry["shape"]))
    return out


@torch.no_grad()
def load_model(directory):
    model = CausalLM(json.loads((directory / "config.json").read_text()))
    tensors = read_safetensors(directory / "model.safetensors")
    model.embed.copy_(tensors["model.embed_tokens.weight"])
    model.norm.copy_(tensors["model.norm.weight"])
    for i, layer in enumerate(model.layers):
        def stacked(*names):
            return torch.cat([tensors[f"model.layers.{i}.{name}.weight"] for name in names])

        layer.input_norm.copy_(stacked("input_layernorm"))
        layer.post_norm.copy_(stacked("post_attention_layernorm"))
        layer.q_norm.copy_(stacked("self_attn.q_norm"))
        layer.k_norm.copy_(stacked("self_attn.k_norm"))
        layer.qkv.copy_(stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
        layer.o.copy_(stacked("self_attn.o_proj"))
        layer.gate.copy_(stacked("mlp.gate_proj"))
        layer.up.copy_(stacked("mlp.up_proj"))
        layer.down.copy_(stacked("mlp.down_proj"))
    return model


# --- Acting -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def generate(model, prompts, valid, samples, max_tokens, temperature, end=END):
    """`samples` answers to each row of `prompts` [tasks, width]; greedy at temperature 0.

    Returns tokens and log-probabilities [tasks * samples, max_tokens] and the answers' lengths, `end` included.
    """
    rows, width = prompts.shape
    cache = model.new_cache(rows, width + max_tokens)
    logits = model.head(model(prompts, valid, cache)[:, -1]).repeat_interleave(samples, 0)
    if samples > 1:
        cache = [c.repeat_interleave(samples, 1) for c in cache]
    valid = torch.cat((valid, torch.ones(rows, max_tokens, dtype=torch.bool)), 1).repeat_interleave(samples, 0)
    tokens = torch.zeros(rows * samples, max_tokens, dtype=torch.long)
    logprobs, lengths = torch.zeros(tokens.shape), torch.zeros(len(tokens), dtype=torch.long)
    places, live = torch.arange(len(tokens)), torch.ones(len(tokens), dtype=torch.bool)
    for t in range(max_tokens):
        logp = F.log_softmax(logits / temperature if temperature else logits, -1)
        chosen = logp if temperature == 0 else logp.exp() / torch.empty_like(logp).exponential_()
        chosen = chosen.argmax(-1, keepdim=True)
        tokens[places, t], logprobs[places, t] = chosen[:, 0], logp.gather(1, chosen)[:, 0]
        lengths[places] += live
        live &= chosen[:, 0] != end
        left = int(live.sum())
        if left == 0 or t + 1 == max_tokens:
            break
        if 2 * left <= len(places):
            kept = live.nonzero()[:, 0]
            places, live, chosen, valid = places[kept], live[kept], chosen[kept], valid[kept]
            cache = [c[:, kept] for c in cache]
        logits = model.head(model(chosen, valid[:, :width + t + 1], cache, width + t)[:, 0])
    return tokens, logprobs, lengths


def accuracy(model, tasks, families):
    ids, padding = encode_prompts(tasks)
    valid = torch.arange(ids.shape[1]) >= padding[:, None]
    answers, _, lengths = generate(model, ids, valid, 1, args.max_tokens, 0)
    return (rewards_of(answers, lengths, tasks, families) == 1).double().mean().item()


# --- Learning -----------------------------------------------------------------------------------------------------


def new_optimizer(model, lr):
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, foreach=True)


def answer_logprobs(model, prompts, padding, answers, temperature):
    """Log-probabilities [rows, answer length] of `answers` after `prompts`."""
    ids = torch.cat((prompts, answers[:, :-1]), 1)
    hidden = model(ids, torch.arange(ids.shape[1]) >= padding[:, None])
    logits = model.head(hidden[:, prompts.shape[1] - 1:])
    return F.log_softmax(logits / temperature, -1).gather(2, answers[..., None])[..., 0]


def optimizer_step(model, optimizer):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def warm_start(model, train, families, rng):
    optimizer, source = new_optimizer(model, 2e-3), endless(train, rng)
    for step in range(args.warm_steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, (step + 1) / 50)
        tasks = list(itertools.islice(source, 128))
        answers = [families[family][rng.integers(len(families[family]))] for _, family in tasks]
        ids, padding = encode_prompts(tasks)
        loss = -answer_logprobs(model, ids, padding, torch.tensor([[TOKEN_OF[c] for c in a] for a in answers]), 1.0).mean()
        loss.backward()
        optimizer_step(model, optimizer)


def group_advantages(rewards):
    """GRPO's, [tasks, samples]; exactly 0 where a group's rewards are equal."""
    centred = rewards - rewards.mean(1, keepdim=True)
    advantages = centred / (rewards.std(1, keepdim=True) + 1e-4)
    return advantages.masked_fill((rewards == rewards[:, :1]).all(1, keepdim=True), 0.0)


def train_on(model, optimizer, prompts, padding, answers, behaviour, lengths, advantages):
    """`passes` optimizer steps on PPO's clipped surrogate, mean over the tokens of the whole batch."""
    tokens = int(lengths.sum())
    kept = advantages.nonzero()[:, 0] if args.skip_zero_advantage else torch.arange(len(advantages))
    if len(kept) == 0:
        return
    kept = kept[lengths[kept].argsort()]  # short ones together: less padding
    for _ in range(args.passes):
        for rows in kept.split(args.micro):
            width = int(lengths[rows].max())
            logp = answer_logprobs(model, prompts[rows], padding[rows], answers[rows, :width], args.temperature)
            ratio, a = (logp - behaviour[rows, :width]).exp(), advantages[rows, None]
            surrogate = torch.minimum(ratio * a, ratio.clamp(1 - 0.2, 1 + 0.28) * a)
            loss = -(surrogate * (torch.arange(width) < lengths[rows, None])).sum() / tokens
            loss.backward()
        optimizer_step(model, optimizer)


def reinforce(model, train, families, rng):
    """Returns times of generation and training, and the fraction solved, a step each."""
    optimizer, source = new_optimizer(model, args.lr), endless(train, rng)
    generate_s, train_s, solved = [], [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        tasks = list(itertools.islice(source, args.tasks))
        ids, padding = encode_prompts(tasks)
        valid = torch.arange(ids.shape[1]) >= padding[:, None]
        answers, behaviour, lengths = generate(model, ids, valid, args.samples, args.max_tokens, args.temperature)
        rewards = rewards_of(answers, lengths, [t for t in tasks for _ in range(args.samples)], families)
        middle = time.perf_counter()
        advantages = group_advantages(rewards.view(args.tasks, args.samples)).flatten()
        train_on(model, optimizer, ids.repeat_interleave(args.samples, 0), padding.repeat_interleave(args.samples), answers,
                 behaviour, lengths, advantages)
        generate_s.append(middle - begin)
        train_s.append(time.perf_counter() - middle)
        solved.append((rewards == 1).double().mean().item())
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}: solved {np.mean(solved[-20:]):.3f}", file=sys.stderr, flush=True)
    return generate_s, train_s, solved


# --- The whole ----------------------------------------------------------------------------------------------------


def check(directory):
    """Compares with values of Hugging Face transformers. Prints the largest differences; false if one is too large."""
    golden = read_safetensors(directory / "golden.safetensors")
    expected = json.loads((directory / "golden.json").read_text())["losses"]
    model, ids, valid = load_model(directory), golden["input_ids"], golden["attention_mask"].bool()
    with torch.no_grad():
        logits = model.head(model(ids, valid))
    found = {"logits": (logits - golden["logits"])[valid].abs().max().item(), "greedy_wrong": 0, "losses": 0.0}
    # The rows once more, padded on the left as generation wants them.
    order = valid.long().sort(dim=1, stable=True)[1]
    tokens, _, _ = generate(model, ids.gather(1, order), valid.gather(1, order), 1, 32, 0, end=-1)
    found["greedy_wrong"] = int((tokens != golden["greedy_32"]).sum())
    optimizer = new_optimizer(model, 1e-3)
    for loss_expected in expected:
        optimizer.zero_grad()
        logp = F.log_softmax(model.head(model(ids, valid))[:, :-1], -1).gather(2, ids[:, 1:, None])[..., 0]
        loss = -logp[valid[:, 1:]].mean()
        loss.backward()
        optimizer.step()
        found["losses"] = max(found["losses"], abs(loss.item() - loss_expected))
    print(json.dumps(found))
    return found["logits"] < 1e-4 and found["greedy_wrong"] == 0 and found["losses"] < 1e-4


def main():
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.check:
        return 0 if check(args.check) else 1
    rng = np.random.default_rng(args.seed)
    families = solvable_tasks()
    train, held_back = split_tasks(families, args.eval_count, args.seed)
    model = load_model(args.model) if args.model else CausalLM(SMALL_CONFIG)
    if model.config["vocab_size"] != len(VOCABULARY):
        sys.exit(f"{args.model}: a vocabulary of {model.config['vocab_size']} tokens; the task's has {len(VOCABULARY)}")
    if args.warm_steps:
        warm_start(model, train, families, rng)
        if args.eval:
            print(f"after the warm start: accuracy {accuracy(model, held_back, families):.3f}", file=sys.stderr, flush=True)
    generate_s, train_s, solved = reinforce(model, train, families, rng)
    out = {"samples_per_s": None, "generate_s": None, "train_s": None, "steps": args.steps, "threads": args.threads}
    if args.steps > 2:
        out["generate_s"], out["train_s"] = float(np.mean(generate_s[2:])), float(np.mean(train_s[2:]))
        out["samples_per_s"] = args.tasks * args.samples / (out["generate_s"] + out["train_s"])
    if args.eval:
        out["accuracy"] = accuracy(model, held_back, families)
    out["solved"] = float(np.mean(solved[-10:])) if solved else None
    print(json.dumps(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
