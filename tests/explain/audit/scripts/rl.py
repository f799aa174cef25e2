"""Reinforcement learning: a replay buffer on the device, a target network, an actor and a learner."""

import functools

import jax
import jax.numpy as jnp

SIZE, OBSERVATION, ACTIONS = 256, 96, 4


@functools.partial(jax.jit)
def store(buffer, index, observation, reward):
    return {
        "observation": buffer["observation"].at[index].set(observation),
        "reward": buffer["reward"].at[index].set(reward),
    }


@jax.jit
def act(params, observation):
    return jnp.argmax(observation @ params["q"])


@jax.jit
def learn(params, target, moments, batch):
    def loss(params):
        wanted = batch["reward"] + 0.9 * (batch["observation"] @ target["q"]).max(-1)
        return jnp.mean((batch["observation"] @ params["q"] - wanted[:, None]) ** 2)

    grads = jax.grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, moments), moments


def environment(t, action):
    return jnp.sin(jnp.arange(OBSERVATION) * (t + 1.0) + action), jnp.cos(t * 1.0)


params = {"q": jnp.full((OBSERVATION, ACTIONS), 0.1)}
target = params
moments = jax.tree.map(jnp.zeros_like, params)
buffer = {"observation": jnp.zeros((SIZE, OBSERVATION)), "reward": jnp.zeros(SIZE)}
observation = jnp.ones(OBSERVATION)
total = 0.0
for t in range(12):
    action = act(params, observation)
    observation, reward = environment(t, action)
    buffer = store(buffer, t, observation, reward)
    params, moments = learn(params, target, moments, buffer)
    if t % 4 == 3:
        target = params
    total += float(reward)
print(f"{total:.5f} {float(params['q'].sum()):.5f}")
