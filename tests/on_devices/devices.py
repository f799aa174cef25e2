"""Imported first by every file of cases: eight devices of the host's."""

import jax

# Several programs at once, each of which waits for eight threads, can starve one another where there are few cores.
jax.config.update("jax_cpu_enable_async_dispatch", False)  # which counts until the first look at the devices

assert jax.device_count() == 8, "run these by `pytest tests/test_on_devices.py`"
