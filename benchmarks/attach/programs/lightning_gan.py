"""A GAN with manual optimization in Lightning's Trainer: both optimizers take their steps inside DDP's forward."""

import lightning.pytorch as pl
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

latent = 16


class Images(Dataset):
    def __init__(self, length):
        self.images = torch.randn(length, 64, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


class GAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(latent, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
        self.criterion = nn.BCEWithLogitsLoss()

    def training_step(self, batch, batch_idx):
        optimizer_g, optimizer_d = self.optimizers()
        real, fake = torch.ones(len(batch), 1), torch.zeros(len(batch), 1)
        noise = torch.randn(len(batch), latent)

        self.toggle_optimizer(optimizer_g)
        g_loss = self.criterion(self.discriminator(self.generator(noise)), real)
        self.manual_backward(g_loss)
        self.clip_gradients(optimizer_g, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        d_loss = self.criterion(self.discriminator(batch), real)
        d_loss = (d_loss + self.criterion(self.discriminator(self.generator(noise).detach()), fake)) / 2
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)
        print(batch_idx, repr(g_loss.item()), repr(d_loss.item()))

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        )


pl.seed_everything(0)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=pl.strategies.DDPStrategy(process_group_backend="gloo", find_unused_parameters=True),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(GAN(), DataLoader(Images(2 * 8 * 54), batch_size=8))
print(trainer.global_step)
