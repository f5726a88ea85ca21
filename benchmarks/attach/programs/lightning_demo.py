"""Lightning's own demonstration model, a transformer, in Lightning's Trainer: DDP, clipping, validation, checkpoints."""

import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.demos import LightningTransformer
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __init__(self, length):
        self.tokens = torch.randint(100, (length, 25), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index, :-1], self.tokens[index, 1:]


class Model(LightningTransformer):
    def prepare_data(self):
        """Downloads nothing."""

    def validation_step(self, batch, batch_idx):
        self.log("val", super().training_step(batch, batch_idx), sync_dist=True)

    def on_before_optimizer_step(self, optimizer):
        print(self.global_step, repr(sum(p.grad.double().norm().item() for p in self.parameters())))


with tempfile.TemporaryDirectory() as folder:
    pl.seed_everything(0)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=pl.strategies.DDPStrategy(process_group_backend="gloo"),
        max_steps=52,
        gradient_clip_val=1.0,
        val_check_interval=20,
        logger=False,
        callbacks=[pl.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=25)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(vocab_size=100), DataLoader(Tokens(320), batch_size=4), DataLoader(Tokens(16), batch_size=4))
    print(trainer.global_step)
