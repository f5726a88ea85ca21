"""The engine of PyTorch-Ignite: create_supervised_trainer, an evaluator after each epoch, idist for the ranks."""

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from torch import nn
from torch.utils.data import TensorDataset


def training(local_rank):
    torch.manual_seed(2)
    data = TensorDataset(torch.randn(640, 196), torch.randint(10, (640,)))
    train_loader = idist.auto_dataloader(data, batch_size=32, shuffle=True)
    val_loader = idist.auto_dataloader(TensorDataset(*data[:64]), batch_size=32)
    model = idist.auto_model(nn.Sequential(nn.Linear(196, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10)))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.02))
    criterion = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optimizer, criterion)
    evaluator = create_supervised_evaluator(model, metrics={"nll": Loss(criterion)})

    @trainer.on(Events.ITERATION_COMPLETED)
    def log_loss(engine):
        print(engine.state.iteration, repr(engine.state.output))

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine):
        evaluator.run(val_loader)
        print(repr(evaluator.state.metrics["nll"]))

    trainer.run(train_loader, max_epochs=3)


if __name__ == "__main__":
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(training)
