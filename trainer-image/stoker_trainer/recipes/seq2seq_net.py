"""The network of the recipe `seq2seq`. This file needs torch alone: a copy of it lies beside the exported weights.

Source: the Transformer (Vaswani et al. 2017) with learned positions and normalisation before each part; one embedding
for both sides and the output.
Legend: B pairs, S source positions, T target positions, W width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

BEGIN, END = 256, 257  # beside the 256 bytes
VOCABULARY = 258


def real(tokens_BT: torch.Tensor) -> torch.Tensor:
    """Positions up to the first END; after it only more of them follow, to the batch's length. Shape: [B, T] bool."""
    return F.pad(tokens_BT[:, :-1] != END, (1, 0), value=True)


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.memory = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.project = nn.Linear(width, width)

    def forward(
        self, x_BTW: torch.Tensor, memory_BSW: torch.Tensor, mask: torch.Tensor | None, dropout: float
    ) -> torch.Tensor:
        """From each of x to what `mask` lets it see of the memory; without one, to what is not behind it."""
        B, T, W = x_BTW.shape
        q = self.query(x_BTW).view(B, T, self.heads, -1).transpose(1, 2)
        k, v = self.memory(memory_BSW).view(B, -1, 2, self.heads, W // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None)
        return self.project(y.transpose(1, 2).reshape(B, T, W))


class Block(nn.Module):  # type: ignore[misc]
    """Of the encoder, or with `crossed` of the decoder."""

    def __init__(self, width: int, heads: int, dropout: float, crossed: bool) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm1, self.own = nn.LayerNorm(width), Attention(width, heads)
        if crossed:
            self.norm2, self.cross = nn.LayerNorm(width), Attention(width, heads)
        self.norm3 = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTW: torch.Tensor, memory_BSW: torch.Tensor | None, mask: torch.Tensor) -> torch.Tensor:
        """`mask` is of the source."""
        dropout = self.dropout if self.training else 0.0
        x = self.norm1(x_BTW)
        x_BTW = x_BTW + F.dropout(self.own(x, x, mask if memory_BSW is None else None, dropout), dropout)
        if memory_BSW is not None:
            x_BTW = x_BTW + F.dropout(self.cross(self.norm2(x_BTW), memory_BSW, mask, dropout), dropout)
        return x_BTW + F.dropout(self.narrow(F.gelu(self.widen(self.norm3(x_BTW)))), dropout)


class Seq2seq(nn.Module):  # type: ignore[misc]
    """Reads a source and predicts each next token of its target."""

    def __init__(self, context: int, layers: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.encoder = nn.ModuleList(Block(width, heads, dropout, crossed=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Block(width, heads, dropout, crossed=True) for _ in range(layers))
        self.encoded, self.decoded = nn.LayerNorm(width), nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.ndim >= 2:
                into_residual = name.endswith(("project.weight", "narrow.weight"))
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if into_residual else 0.02)

    def forward(self, source_BS: torch.Tensor, target_BT: torch.Tensor) -> torch.Tensor:
        """Scores of each next target token; a target begins with BEGIN. Shape: [B, S], [B, T] int64 → [B, T, V]."""
        mask = real(source_BS)[:, None, None]
        memory = self._embedded(source_BS)
        for block in self.encoder:
            memory = block(memory, None, mask)
        x, memory = self._embedded(target_BT), self.encoded(memory)
        for block in self.decoder:
            x = block(x, memory, mask)
        return F.linear(self.decoded(x), self.tokens.weight)

    def _embedded(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        return F.dropout(self.tokens(tokens_BT) + self.positions(places), self.dropout, self.training)
