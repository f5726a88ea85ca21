"""TabNet's own training loop, one process for each rank: validation, early stopping, a scheduler."""

import numpy as np
import torch
from pytorch_tabnet.tab_model import TabNetClassifier

random = np.random.default_rng(0)
X, y = random.normal(size=(64 * 18, 12)).astype(np.float32), random.integers(0, 2, 64 * 18)
model = TabNetClassifier(
    seed=0,
    verbose=0,
    device_name="cpu",
    scheduler_fn=torch.optim.lr_scheduler.StepLR,
    scheduler_params={"step_size": 2, "gamma": 0.9},
)
model.fit(X, y, eval_set=[(X[:128], y[:128])], max_epochs=3, batch_size=64, virtual_batch_size=32, drop_last=True)
print(model.history["loss"], model.history["val_0_auc"])
