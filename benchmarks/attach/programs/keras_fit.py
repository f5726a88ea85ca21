"""Keras on torch: its own fit(), optimizers and layers, one process for each rank."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x, y = random.normal(size=(32 * 18, 64)).astype("float32"), random.integers(0, 5, 32 * 18)
model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(5),
    ]
)
model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
shows = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print(batch, repr(float(logs["loss"]))))
model.fit(x, y, batch_size=32, epochs=3, verbose=0, callbacks=[shows], validation_data=(x[:64], y[:64]))
