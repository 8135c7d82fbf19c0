"""The network of the recipe `bert`. This file needs torch alone: a copy of it lies beside the exported weights.

Source: BERT (Devlin et al. 2019) with the normalisation before each part, as GPT-2 has it, which trains without a long
warm-up; no segments.
Legend: B samples, T positions, K hidden positions, W width, V vocabulary.
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
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTW: torch.Tensor) -> torch.Tensor:
        dropout = self.dropout if self.training else 0.0
        B, T, W = x_BTW.shape
        qkv = self.qkv(self.norm1(x_BTW)).view(B, T, 3, self.heads, W // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        x_BTW = x_BTW + F.dropout(self.project(y.transpose(1, 2).reshape(B, T, W)), dropout)
        return x_BTW + F.dropout(self.narrow(F.gelu(self.widen(self.norm2(x_BTW)))), dropout)


class Bert(nn.Module):  # type: ignore[misc]
    """An encoder that restores hidden tokens; token `vocabulary` stands for a hidden one."""

    def __init__(self, vocabulary: int, context: int, layers: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.vocabulary = dropout, vocabulary
        self.tokens = nn.Embedding(vocabulary + 1, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for name, p in self.named_parameters():
            if p.ndim >= 2:
                into_residual = name.endswith(("project.weight", "narrow.weight"))
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if into_residual else 0.02)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """What is known of each position. Shape: [B, T] int64 → [B, T, W]."""
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTW = F.dropout(self.tokens(tokens_BT) + self.positions(places), self.dropout, self.training)
        for block in self.blocks:
            x_BTW = block(x_BTW)
        return self.norm(x_BTW)

    def restore(self, tokens_BT: torch.Tensor, hidden_BK: torch.Tensor) -> torch.Tensor:
        """Scores of the tokens at the positions `hidden_BK` alone. Shape: → [B, K, V]."""
        return F.linear(self.features(tokens_BT, hidden_BK), *self.output())

    def features(self, tokens_BT: torch.Tensor, hidden_BK: torch.Tensor) -> torch.Tensor:
        """What those scores are made of. Shape: → [B, K, W]."""
        x_BTW = self(tokens_BT)
        x_BKW = x_BTW.gather(1, hidden_BK[..., None].expand(-1, -1, x_BTW.shape[-1]))
        return self.head_norm(F.gelu(self.head(x_BKW)))

    def output(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias that turn features into scores."""
        return self.tokens.weight[: self.vocabulary], self.bias
