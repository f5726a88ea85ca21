"""PPO of Stable-Baselines3 on an environment made here: rollouts without gradients, then epochs over what they gave."""

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.normal(size=6).astype(np.float32), 0
        return self.place, {}

    def step(self, action):
        self.place = np.clip(self.place + self.np_random.normal(scale=0.1, size=6) + 0.1 * (action - 1), -9, 9)
        self.place, self.time = self.place.astype(np.float32), self.time + 1
        return self.place, -float(np.abs(self.place).mean()), False, self.time >= 40, {}


torch.manual_seed(0)
model = PPO("MlpPolicy", Walk(), n_steps=96, batch_size=32, n_epochs=3, seed=0, verbose=0, device="cpu")
model.learn(total_timesteps=96 * 6)
print(repr(sum(p.detach().double().sum().item() for p in model.policy.parameters())))
