"""Train a character GPT on the sources of Python's standard library, on device "tpu".

    python examples/train_gpt.py [--device tpu] [--steps 600] [--compare] [--out demo_output]

Four layers, plain torch.nn, AdamW with warm-up and cosine decay; then it writes some Python.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from report import COMPARED, Progress, assert_same_curve, plot_curves
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH = 4, 4, 64
CONTEXT, BATCH = 64, 32
LEARNING_RATE, WARM_UP = 8e-3, 20
PROMPT, TEMPERATURE = "\ndef ", 0.6
ENOUGH_STEPS = 400  # fewer than this are a smoke run: the loss is shown, not asserted
SOURCES = """
    argparse ast configparser dataclasses datetime decimal difflib doctest enum inspect optparse
    pathlib pickle subprocess tarfile textwrap threading traceback typing zipfile
""".split()


def corpus() -> str:
    """The text of some modules of the standard library, in ASCII, indented by tabs."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = (folder / f"{name}.py" for name in SOURCES)
    text = "".join(file.read_text("utf-8") for file in files if file.exists())
    return text.encode("ascii", "ignore").decode().replace("    ", "\t")


class Block(nn.Module):
    """Attention over the past, then an MLP, each added to its input."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, s, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # each [b, h, s, d]
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Characters [b, s] to the logits of the next one [b, s, characters]."""

    def __init__(self, characters: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.position = nn.Parameter(torch.empty(CONTEXT, WIDTH))
        for table in (self.token.weight, self.position):
            nn.init.normal_(table, std=0.5)
        self.blocks = nn.Sequential(*(Block(dropout) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position
        return self.head(self.norm(self.blocks(x)))


def learning_rate(step: int, steps: int) -> float:
    """As a share of the highest one."""
    warm = min(1.0, (step + 1) / WARM_UP)
    return warm * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def train(
    device: str, text: Tensor, characters: int, steps: int, planned: int
) -> tuple[GPT, list[float], float]:
    """Train a new model for the first `steps` of the `planned` minibatches.

    Returns it, its losses, and tokens per second after the first step, which compiles.
    """
    torch.manual_seed(0)
    model = GPT(characters).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.1
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: learning_rate(i, planned))
    windows = text.unfold(0, CONTEXT + 1, 1)  # a view: [len(text) - CONTEXT, CONTEXT + 1]
    choice = torch.Generator().manual_seed(0)
    progress, losses, warm = Progress(device, steps), [], 0.0
    for step in range(steps):
        batch = windows[torch.randint(len(windows), (BATCH,), generator=choice)].to(device)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        progress.update(step + 1, losses[-1])
        if step == 0:
            warm = progress.seconds
    rate = (steps - 1) * BATCH * CONTEXT / (progress.seconds - warm) if steps > 1 else 0.0
    return model, losses, rate


@torch.no_grad()
def sample(model: GPT, device: str, tokens: Tensor, length: int) -> Tensor:
    """Continue `tokens` [CONTEXT] by `length` characters; one shape, so one compile."""
    model.eval()
    choice = torch.Generator().manual_seed(0)
    for _ in range(length):
        logits = model(tokens[-CONTEXT:].unsqueeze(0).to(device))[0, -1].cpu()
        following = torch.multinomial((logits / TEMPERATURE).softmax(0), 1, generator=choice)
        tokens = torch.cat([tokens, following])
    return tokens[CONTEXT:]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a character GPT on Python's library.")
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sample", type=int, default=240, help="characters to write")
    parser.add_argument("--compare", action="store_true", help="train on torch's CPU too")
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    args = parser.parse_args(argv)

    written = corpus()
    alphabet = sorted(set(written))
    text = torch.tensor([alphabet.index(c) for c in written])
    print(f"gpt: {len(text):,} characters of Python, {len(alphabet)} different ones")
    model, losses, rate = train(args.device, text, len(alphabet), args.steps, args.steps)
    print(f"{rate:,.0f} tokens/s after the first step")
    curves = {args.device: losses}
    if args.compare:
        steps = min(args.steps, COMPARED)
        _, curves["cpu"], _ = train("cpu", text, len(alphabet), steps, args.steps)
        worst = assert_same_curve(losses, curves["cpu"])
        print(f"losses equal torch CPU's: at most {worst:.0e} apart in the first {steps} steps")
    picture = args.out / "gpt.png"
    plot_curves(picture, "character GPT on the standard library", curves)
    print(f"curves in {picture}; a sample:\n")
    start = written.index(PROMPT, CONTEXT) + len(PROMPT)
    continued = sample(model, args.device, text[start - CONTEXT : start], args.sample)
    print((PROMPT + "".join(alphabet[i] for i in continued.tolist())).expandtabs(4))
    if args.steps >= ENOUGH_STEPS:
        last = sum(losses[-20:]) / 20
        assert last < 2.2, f"loss {last:.2f} after {args.steps} steps, expected below 2.2"


if __name__ == "__main__":
    main()
