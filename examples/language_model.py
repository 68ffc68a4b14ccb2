"""A small decoder-only transformer, the model that train.py trains and serve.py runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    """Each position looks at itself and at what came before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        split = self.query_key_value(hidden).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what it was given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm_attention(hidden))
        return hidden + self.mlp(self.norm_mlp(hidden))


class LanguageModel(nn.Module):
    """Predicts the next letter at every position of a text of at most ``context`` letters."""

    def __init__(
        self, letters: int, context: int = 64, width: int = 128, heads: int = 4, layers: int = 3
    ) -> None:
        super().__init__()
        self.context = context
        self.letter = nn.Embedding(letters, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[-1], device=tokens.device)
        hidden = self.letter(tokens) + self.position(positions)
        return self.head(self.norm(self.blocks(hidden)))

    @torch.inference_mode()
    def generate(self, prompt: Tensor, count: int, temperature: float = 0.7) -> Tensor:
        """``prompt``, one dimension and at least one letter, followed by ``count`` letters drawn
        one after another.
        """
        tokens = prompt[None]
        for _ in range(count):
            logits = self(tokens[:, -self.context :])[:, -1]
            drawn = torch.multinomial(F.softmax(logits / temperature, dim=-1), 1)
            tokens = torch.cat([tokens, drawn], dim=1)
        return tokens[0]
