"""LSTM language model on token ids: a workload with its own data, loss and optimizer.

scalewise train examples/lstm_language_model.py:workload --batch 16 --steps 20
scalewise advise examples/lstm_language_model.py:workload --batch 16
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise import Data, DataRequest, Workload

VOCABULARY, CONTEXT, SAMPLES = 1000, 32, 256


class LanguageModel(nn.Module):
    """Embedding, two LSTM layers and a linear layer.

    Token ids [batch, context] -> scores [batch, context, vocabulary].
    """

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.head(states)
        return scores


def next_token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next token."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def load(request: DataRequest) -> Data:
    """Random token ids; read your own file from `request.folder` (--data) here."""
    generator = torch.Generator().manual_seed(request.seed)
    tokens = torch.randint(VOCABULARY, (request.samples or SAMPLES, CONTEXT + 1), generator=generator)
    return Data("random token ids", (tokens[:, :-1], tokens[:, 1:]))


def workload() -> Workload:
    return Workload(
        name="lstm-language-model",
        model=LanguageModel,
        data=load,
        loss=next_token_loss,
        input_shape=(CONTEXT,),
        input_dtype=torch.int64,
        optimizer="adamw",
        learning_rate=1e-3,
    )
