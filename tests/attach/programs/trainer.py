"""A small GPT-2 with random weights, trained by the Trainer of Transformers: accumulation, evaluation, checkpoints."""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments


class Texts(Dataset):
    def __init__(self, length):
        self.tokens = torch.randint(64, (length, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        time.sleep(float(os.environ.get("DISK_MS", "0")) / 1000)
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--callback")
args = parser.parse_args()
callbacks = []
if args.callback:
    from distprof.attach.transformers import TransformersCallback

    callbacks = [TransformersCallback("trainer", run_dir=args.callback, warmup_steps=1, shadow_every=0)]
with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(0)
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2)),
        args=TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=20,
            save_steps=20,
            save_total_limit=1,
            logging_steps=1,
            use_cpu=True,
            ddp_backend="gloo",
            report_to="none",
            disable_tqdm=True,
            learning_rate=1e-3,
        ),
        train_dataset=Texts(96),
        eval_dataset=Texts(8),
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)  # it prints how long evaluation took
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(entry["step"], repr(entry["loss"]), repr(entry["grad_norm"]))
    print(sum(float(each.detach().double().sum()) for each in trainer.model.parameters()))
    dist.barrier()
dist.destroy_process_group()
