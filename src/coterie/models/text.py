"""Models of text: every next character from those before it."""

from __future__ import annotations

from torch import Tensor, nn

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


def leaf_lstm(vocabulary: int, hidden: int = 256) -> nn.Module:
    """LEAF's model of Shakespeare, which k-FED uses: an embedding of 8 and two LSTM layers of 256.

    819,920 parameters for LEAF's 80 characters. Differs: LEAF learns the character after a sequence only; here the
    loss is the mean over every character of it.
    """
    return char_lstm(vocabulary, 8, hidden, 2)
