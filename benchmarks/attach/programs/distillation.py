"""A student learns from a frozen teacher; exponential moving average of the student; validation on both."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ConvNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(width * 64, 10))

    def forward(self, x):
        return self.classifier(self.features(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
teacher, student = ConvNet(24), ConvNet(8)
teacher.eval().requires_grad_(False)
ema = copy.deepcopy(student).requires_grad_(False)
student = nn.parallel.DistributedDataParallel(student)
data = TensorDataset(torch.randn(2 * 16 * 28, 3, 16, 16), torch.randint(10, (2 * 16 * 28,)))
sampler = DistributedSampler(data)
loader, val = DataLoader(data, batch_size=16, sampler=sampler), DataLoader(TensorDataset(*data[:32]), batch_size=16)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    student.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        with torch.no_grad():
            teacher_logits = teacher(inputs)
        student_logits = student(inputs)
        soft = F.kl_div(F.log_softmax(student_logits / 2, -1), F.softmax(teacher_logits / 2, -1), reduction="batchmean")
        loss = 0.25 * 4 * soft + 0.75 * F.cross_entropy(student_logits, labels)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), student.parameters()):
                e.lerp_(p, 0.01)
        print(epoch, repr(loss.item()))
    student.eval()
    with torch.no_grad():
        for inputs, labels in val:
            print((student(inputs).argmax(1) == labels).sum().item(), (ema(inputs).argmax(1) == labels).sum().item())
dist.destroy_process_group()
