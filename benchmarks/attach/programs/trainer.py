"""The Trainer of Transformers, on a GPT-2 with random weights: accumulation, evaluation, checkpoints, logging."""

import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments


class Texts(Dataset):
    def __init__(self, length):
        self.tokens = torch.randint(128, (length, 24), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(0)
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=24, n_embd=64, n_layer=2, n_head=4)),
        args=TrainingArguments(
            output_dir=folder,
            max_steps=52,
            per_device_train_batch_size=4,
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
        ),
        train_dataset=Texts(256),
        eval_dataset=Texts(16),
    )
    trainer.remove_callback(PrinterCallback)  # it prints how long evaluation took
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(entry["step"], repr(entry["loss"]), repr(entry["grad_norm"]))
    dist.barrier()
dist.destroy_process_group()
