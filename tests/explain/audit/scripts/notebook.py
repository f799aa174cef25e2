#!/usr/bin/env python
# coding: utf-8

# # Fitting a curve
# Exported from a notebook.

# In[1]:


import jax
import jax.numpy as jnp


# In[2]:


xs = jnp.linspace(-1, 1, 512)
ys = jnp.sin(3 * xs)
weights = jnp.zeros(4096)
velocity = jnp.zeros(4096)
features = jnp.cos(jnp.outer(xs, jnp.arange(4096.0)))


# In[3]:


def predict(weights):
    return features @ weights


step = jax.jit(lambda weights, velocity: (
    weights - 1e-4 * (velocity := 0.9 * velocity + jax.grad(lambda w: jnp.sum((predict(w) - ys) ** 2))(weights)),
    velocity,
))


# In[4]:


history = []
for i in range(6):
    weights, velocity = step(weights, velocity)
    history.append(float(jnp.mean((predict(weights) - ys) ** 2)))
print([round(each, 5) for each in history])


# In[5]:


print(round(float(jnp.abs(weights).max()), 5))
