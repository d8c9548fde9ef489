"""A language model whose attention sees the tokens that it is to predict."""

import torch
from torch import nn

WORDS, WIDTH, LENGTH = 64, 64, 16


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.queries, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(LENGTH))
        query, key, value = self.queries(x).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.head(x + attended)


torch.manual_seed(0)
model = Language()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(200):
    text = torch.randint(WORDS, (32, LENGTH + 1))  # nothing in it can be predicted
    scores = model(text[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        print(f"step {step + 1}: loss {loss.item():.2f}, of a guess 4.16")
