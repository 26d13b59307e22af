"""Models of text: every next character from those before it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from coterie.models.general import require_counts


class CharLSTM(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.output(states)
        return logits


def char_lstm(vocabulary: int, embedding: int = 8, hidden: int = 64, layers: int = 1) -> nn.Module:
    """Predicts every next character: tokens (batch, time) to logits (batch, time, vocabulary)."""
    require_counts(vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
    return CharLSTM(vocabulary, embedding, hidden, layers)


class CharCNN(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, channels: int, window: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.window = nn.Conv1d(embedding, channels, window)
        self.output = nn.Linear(channels, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        before = self.window.kernel_size[0] - 1  # so that no character sees one after it
        seen = functional.pad(self.embedding(tokens).transpose(-1, -2), (before, 0))
        logits: Tensor = self.output(functional.relu(self.window(seen)).transpose(-1, -2))
        return logits


def char_cnn(vocabulary: int, embedding: int = 8, channels: int = 64, window: int = 6) -> nn.Module:
    """Predicts every next character from the last six or as many as the window has, which a CPU learns fast."""
    require_counts(vocabulary=vocabulary, embedding=embedding, channels=channels, window=window)
    return CharCNN(vocabulary, embedding, channels, window)


def leaf_lstm(vocabulary: int, hidden: int = 256) -> nn.Module:
    """LEAF's model of Shakespeare, which k-FED uses: an embedding of 8 and two LSTM layers of 256.

    819,920 parameters for LEAF's 80 characters. Differs: LEAF learns the character after a sequence only; here the
    loss is the mean over every character of it.
    """
    return char_lstm(vocabulary, 8, hidden, 2)
