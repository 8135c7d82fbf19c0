"""The network of the recipe `gpt`. This file needs torch alone: a copy of it lies beside the exported weights.

Source: GPT-2 (Radford et al. 2019): learned positions, normalisation before each part, GELU, the output shares the
embedding's weights. No biases in the linear layers.
Legend: B samples, T positions, W width, H heads, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTW: torch.Tensor) -> torch.Tensor:
        dropout = self.dropout if self.training else 0.0
        B, T, W = x_BTW.shape
        qkv = self.qkv(self.norm1(x_BTW)).view(B, T, 3, self.heads, W // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x_BTW = x_BTW + F.dropout(self.project(y.transpose(1, 2).reshape(B, T, W)), dropout)
        return x_BTW + F.dropout(self.narrow(F.gelu(self.widen(self.norm2(x_BTW)))), dropout)


class Gpt(nn.Module):  # type: ignore[misc]
    """A decoder that predicts each next token."""

    def __init__(self, vocabulary: int, context: int, layers: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.ndim >= 2:
                into_residual = name.endswith(("project.weight", "narrow.weight"))
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if into_residual else 0.02)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Scores of each position's next token. Shape: [B, T] int64 → [B, T, V]."""
        return F.linear(self.features(tokens_BT), *self.output())

    def features(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """What the scores are made of. Shape: [B, T] int64 → [B, T, W]."""
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTW = F.dropout(self.tokens(tokens_BT) + self.positions(places), self.dropout, self.training)
        for block in self.blocks:
            x_BTW = block(x_BTW)
        return self.norm(x_BTW)

    def output(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias that turn features into scores."""
        return self.tokens.weight, None
