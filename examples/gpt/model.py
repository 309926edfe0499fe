# SPDX-License-Identifier: Apache-2.0
"""A GPT, or one pipeline stage of it. A stage keeps the whole model's names: its layers are numbered globally."""
import hashlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    vocabulary: int = 256
    context: int = 32
    width: int = 160
    heads: int = 8
    layers: int = 4


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head_size = c.width // c.heads
        # Separate, so that each can be split by heads. No bias: softmax cancels that of wk, and what is left of its
        # gradient is rounding noise, which Adam would blow up to full steps.
        self.wq = nn.Linear(c.width, c.width, bias=False)
        self.wk = nn.Linear(c.width, c.width, bias=False)
        self.wv = nn.Linear(c.width, c.width, bias=False)
        self.wo = nn.Linear(c.width, c.width)

    def forward(self, x):
        batch, time, _ = x.shape
        # -1: under tensor parallelism this rank has some of the heads.
        q, k, v = (w(x).view(batch, time, -1, self.head_size).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, time, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up = nn.Linear(c.width, 4 * c.width)
        self.down = nn.Linear(4 * c.width, c.width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1 = nn.LayerNorm(c.width)
        self.attn = Attention(c)
        self.norm2 = nn.LayerNorm(c.width)
        self.mlp = MLP(c)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Layers first..last-1 of the model; tokens come in if first is 0, logits go out if last is the end."""
    recompute = False  # True: of a layer only its input is kept, and the backward pass computes it once more

    def __init__(self, c, first=0, last=None):
        super().__init__()
        last = c.layers if last is None else last
        if first == 0:
            self.tokens = nn.Embedding(c.vocabulary, c.width)
            self.positions = nn.Parameter(torch.empty(c.context, c.width))
        self.layers = nn.ModuleDict({str(i): Block(c) for i in range(first, last)})
        if last == c.layers:
            self.norm = nn.LayerNorm(c.width)
            self.head = nn.Linear(c.width, c.vocabulary, bias=False)

    def forward(self, x):
        if hasattr(self, "tokens"):
            x = self.tokens(x) + self.positions
        for layer in self.layers.values():
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x

    @torch.no_grad()
    def initialize(self, seed, layers):
        """Values depend on the seed and the parameter's name only, so that no parallelism changes them."""
        for name, p in self.named_parameters():
            if p.dim() == 1:
                p.fill_(1.0 if name.endswith("weight") else 0.0)
                continue
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            std = 0.02 / (2 * layers) ** 0.5 if name.endswith(("wo.weight", "down.weight")) else 0.02
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float32) * std)
