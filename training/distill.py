"""Distil a drafter: a few of the target's own layers, trained on the target's own text.

    python -m training.distill --target DIR --out DIR --minutes 30 DATA.jsonl...

The layers start as copies of the target's (first and last by default). The embedding and the head are
the target's own embedding rows and stay frozen, so the drafter's file holds neither: the head is
trimmed to the most frequent tokens of the data, and only their ids are stored.

DATA rows are JSON: `p` prompt token ids, `g` token ids the target generated, `d` the domain,
`greedy` whether `g` is the target's argmax. Loss: cross-entropy on `g`. Held out: 60 greedy rows.
"""

import argparse
import copy
import hashlib
import json
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

Row = dict[str, Any]
HELD_OUT = 60
DRAFTED = 4


def main() -> None:
    """Parse the command line, train, and write the drafter folder."""
    args = parse_args()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    torch.set_num_threads(args.threads)
    target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    held_out, rows = split(read(args.data))
    student = Student(target, args.layers, head_ids(rows, target.config.vocab_size, args.head))
    print(f"{len(rows)} rows, {len(held_out)} held out, {trainable(student) / 1e6:.1f} M parameters", flush=True)
    started = time.monotonic()
    for step, loss in enumerate(train(student, rows, args), start=1):
        if step % 50 == 0:
            print(f"step {step} loss {loss:.3f} {(time.monotonic() - started) / 60:.1f} min", flush=True)
        if step % 400 == 0:
            write(args, student, step, evaluate(student, held_out))
    write(args, student, step, evaluate(student, held_out))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder of the target (config.json, model.safetensors)")
    parser.add_argument("--out", required=True, type=Path, help="folder to write the drafter to")
    parser.add_argument("--layers", default=[0, -1], type=int, nargs="+", help="target layers to start from")
    parser.add_argument("--head", default=8192, type=int, help="tokens the drafter can say")
    parser.add_argument("--minutes", default=30.0, type=float, help="wall time to train for")
    parser.add_argument("--batch", default=16, type=int, help="sequences a step")
    parser.add_argument("--lr", default=1e-3, type=float, help="peak learning rate (AdamW, cosine)")
    parser.add_argument("--threads", default=2, type=int, help="CPU threads")
    parser.add_argument("--seed", default=0, type=int, help="seed of initialisation order and batches")
    parser.add_argument("data", nargs="+", help="JSON-lines files of the target's generations")
    return parser.parse_args()


class Student(nn.Module):
    """Layers of a target between its own frozen embedding and rows of it as a frozen head."""

    def __init__(self, target: Any, layers: list[int], head: list[int]) -> None:
        super().__init__()
        self.frozen: dict[str, Any] = {"embed": target.model.embed_tokens, "rope": target.model.rotary_emb}
        self.layers = nn.ModuleList(copy.deepcopy(target.model.layers[i]) for i in layers)
        for index, layer in enumerate(self.layers):
            layer.get_submodule("self_attn").layer_idx = index  # type: ignore[assignment]
        self.norm = copy.deepcopy(target.model.norm)
        self.head_ids = torch.tensor(head)
        self.head = target.model.embed_tokens.weight.detach()[self.head_ids]  # (Vh, d)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: (B, T) -> logits over the trimmed head (B, T, Vh)."""
        with torch.no_grad():
            hidden = self.frozen["embed"](ids)
        positions = torch.arange(ids.shape[1])[None]
        rope = self.frozen["rope"](hidden, positions)
        for layer in self.layers:
            out = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rope)
            hidden = out[0] if isinstance(out, tuple) else out
        logits: torch.Tensor = self.norm(hidden) @ self.head.T
        return logits


def trainable(student: Student) -> int:
    return sum(p.numel() for p in student.parameters())


def read(files: list[str]) -> list[Row]:
    return [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]


def split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """(held out, training) rows; the held-out ones are greedy and long enough to judge."""
    random.shuffle(rows)
    held_out = [row for row in rows if row["greedy"] and len(row["g"]) > 60][:HELD_OUT]
    kept_out = {id(row) for row in held_out}
    return held_out, [row for row in rows if id(row) not in kept_out]


def head_ids(rows: list[Row], vocab_size: int, size: int) -> list[int]:
    """The `size` most frequent generated tokens, ascending; unseen low ids fill up."""
    counts = Counter(token for row in rows for token in row["g"])
    ids = [token for token, _ in counts.most_common(size)]
    ids += [token for token in range(vocab_size) if token not in counts][: size - len(ids)]
    return sorted(ids)


def train(student: Student, rows: list[Row], args: argparse.Namespace) -> Iterator[float]:
    """Yield the loss of each step until the time is up."""
    parameters = list(student.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    to_head = torch.full((student.frozen["embed"].num_embeddings,), -1)
    to_head[student.head_ids] = torch.arange(len(student.head_ids))
    started, step = time.monotonic(), 0
    while (spent := (time.monotonic() - started) / (args.minutes * 60)) < 1:
        step += 1
        for group in optimiser.param_groups:
            group["lr"] = args.lr * min(1.0, step / 30) * (0.5 + 0.5 * math.cos(math.pi * spent)) + 1e-5
        ids, gold = batch(random.sample(rows, args.batch), to_head)
        logits = student(ids)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), gold.view(-1), ignore_index=-1)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        yield loss.item()


def batch(rows: list[Row], to_head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """ids (B, T) padded with 0 and gold head indices (B, T); -1 where nothing is asked."""
    width = max(len(row["p"]) + len(row["g"]) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    gold = torch.full((len(rows), width), -1)
    for i, row in enumerate(rows):
        sequence = torch.tensor(row["p"] + row["g"])
        ids[i, : len(sequence)] = sequence
        gold[i, len(row["p"]) - 1 : len(sequence) - 1] = to_head[torch.tensor(row["g"])]
    return ids, gold


@torch.no_grad()
def evaluate(student: Student, rows: list[Row]) -> dict[str, dict[str, float]]:
    """Per domain: top-1 agreement, and tokens a round when DRAFTED tokens are drafted greedily."""
    student.eval()
    sums: dict[str, list[float]] = {}
    for row in rows:
        sequence = row["p"] + row["g"]
        logits = student(torch.tensor([sequence[:-1]]))[0, len(row["p"]) - 1 :]
        agree = (student.head_ids[logits.argmax(-1)] == torch.tensor(row["g"])).float().mean().item()
        rounds, tokens = play(student, row)
        for key in (row["d"], "all"):
            total = sums.setdefault(key, [0.0, 0.0, 0.0, 0.0])
            for i, value in enumerate((1.0, agree, rounds, tokens)):
                total[i] += value
    student.train()
    return {d: {"top1": round(a / n, 4), "tokens_per_round": round(t / r, 4)} for d, (n, a, r, t) in sums.items()}


def play(student: Student, row: Row) -> tuple[int, int]:
    """(rounds, tokens) of chain speculation against the row's own text, the first 48 tokens of it."""
    sequence, done, rounds = row["p"] + row["g"], len(row["p"]), 0
    end = min(len(sequence) - 1, done + 48)
    start = done
    while done < end:
        context = list(sequence[:done])
        for _ in range(DRAFTED):
            token = int(student.head_ids[student(torch.tensor([context]))[0, -1].argmax()])
            if len(context) >= len(sequence) or token != sequence[len(context)]:
                break
            context.append(token)
        rounds, done = rounds + 1, len(context) + 1
    return rounds, done - start


def write(args: argparse.Namespace, student: Student, step: int, scores: dict[str, dict[str, float]]) -> None:
    """Write config.json, model.safetensors (fp16) and drafter.json (what it is, and what was measured)."""
    args.out.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.from_pretrained(args.target)
    config.num_hidden_layers = len(args.layers)
    config.save_pretrained(args.out)
    weights = {f"model.{k}": v.detach().half().contiguous() for k, v in student.state_dict().items()}
    save_file({**weights, "head_ids": student.head_ids.to(torch.int32)}, args.out / "model.safetensors")
    card = {
        "embedding": "target",
        "tokenizer_sha256": hashlib.sha256((Path(args.target) / "tokenizer.json").read_bytes()).hexdigest(),
        "start_layers": args.layers,
        "steps": step,
        "batch": args.batch,
        "minutes": args.minutes,
        "seed": args.seed,
        "held_out": scores,
    }
    (args.out / "drafter.json").write_text(json.dumps(card, indent=2) + "\n")
    print(f"step {step}: {json.dumps(scores)}", flush=True)


if __name__ == "__main__":
    main()
