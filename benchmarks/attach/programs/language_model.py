"""A word-level LSTM as torch's examples train it: no optimizer, parameters updated by hand, hidden state carried on,
gradients averaged with all_reduce.
"""

import torch
import torch.distributed as dist
from torch import nn

bptt, ntokens, lr, clip = 12, 80, 1.0, 0.25


class RNNModel(nn.Module):
    def __init__(self, ninp=64, nhid=96):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(ntokens, ninp)
        self.rnn, self.decoder, self.nhid = nn.LSTM(ninp, nhid, 2, dropout=0.2), nn.Linear(nhid, ntokens), nhid

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        return torch.log_softmax(self.decoder(self.drop(output)).view(-1, ntokens), dim=1), hidden

    def init_hidden(self, bsz):
        return torch.zeros(2, bsz, self.nhid), torch.zeros(2, bsz, self.nhid)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


dist.init_process_group("gloo")
torch.manual_seed(11)
model, criterion = RNNModel(), nn.NLLLoss()
torch.manual_seed(11 + dist.get_rank())
train_data = torch.randint(ntokens, (bptt * 60 + 1, 10))
hidden = model.init_hidden(10)
model.train()
for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
    data, targets = train_data[i : i + bptt], train_data[i + 1 : i + 1 + bptt].view(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    print(batch, repr(loss.item()))
dist.destroy_process_group()
