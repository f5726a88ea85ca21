"""Training under DistributedDataParallel in which rank 1 stops taking part, in a way that an argument names."""

import ctypes
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

case, timeout_s = sys.argv[1], float(sys.argv[2])
WATCHED = 3
LAST_STEP = 14 if case in ("sleeps", "mismatch", "evaluates") else WATCHED
SUSPECTED = "run/hang.suspected"


def lock_twice():
    """For ever, in C, which keeps Python's lock, like a regular expression without end; but it takes no processor."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def wait_for_watch():
    until_s = time.monotonic() + 30
    while not any(thread.name == "distprof-stalls" for thread in threading.enumerate()) and time.monotonic() < until_s:
        time.sleep(0.01)


def evaluate():
    """Until a hang is suspected, and for some looks after that; then both ranks go on until that is taken back."""
    until_s = time.monotonic() + 60
    while not os.path.exists(SUSPECTED) and time.monotonic() < until_s:
        time.sleep(0.05)
    time.sleep(7)


def sleep_long():
    time.sleep(10_000)


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if case != "before" and index == WATCHED:
            wait_for_watch()  # on a busy machine it may begin so late that the time-out comes first
        while case == "endless" and rank == 1 and index == LAST_STEP:
            time.sleep(0.01)
        return torch.full((4,), float(index)), torch.zeros(1)


def misbehave():
    if case == "left":
        sys.exit(0)
    elif case == "raises":
        raise KeyError("broken record")
    elif case == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case == "lock":
        lock_twice()
    elif case == "sleeps":
        sleep_long()
    elif case == "mismatch":
        dist.broadcast(torch.zeros(5), 0)
    elif case == "evaluates":
        evaluate()
    elif case == "message":
        dist.recv(torch.zeros(1), 0)


dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if case == "before" and rank == 1:
    sleep_long()
elif case == "before":
    dist.barrier()
for step, (batch, target) in enumerate(DataLoader(Numbers())):
    if step == LAST_STEP and rank == 1:
        misbehave()
    loss = (model(batch) - target).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if case == "evaluates" and step == LAST_STEP:
        while os.path.exists(SUSPECTED):
            time.sleep(0.05)
        time.sleep(2)  # it is counted after that
dist.destroy_process_group()
