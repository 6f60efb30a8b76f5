"""Truncated backpropagation through time: the hidden state is carried, and kept by run.values."""

import torch
from torch import nn
from torch.nn import functional as F

import outlast


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.recurrent = nn.LSTM(16, 16, num_layers=2, dropout=0.2)
        self.decoder = nn.Linear(16, 50)

    def forward(self, tokens, hidden):
        output, hidden = self.recurrent(self.embedding(tokens), hidden)
        return self.decoder(output), hidden


run = outlast.join()
torch.manual_seed(31)
corpus = torch.randint(0, 50, (4000, 8), generator=torch.Generator().manual_seed(run.rank))
model = run.replicate(Words())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
kept = run.values(hidden=None)
state = run.state(model=model, optimizer=optimizer, kept=kept)
for step in run.steps(state, until=40):
    with step:
        at = step.number * 20
        optimizer.zero_grad()
        output, hidden = model(corpus[at : at + 20], kept.hidden)
        kept.hidden = tuple(one.detach() for one in hidden)
        loss = F.cross_entropy(output.view(-1, 50), corpus[at + 1 : at + 21].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
print(f"digest {run.rank} {outlast.digest(state)}")
