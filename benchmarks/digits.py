"""Train a small convolutional network on handwritten digits, twice: under `jax.jit` and under `pytc.compile`.

The two runs start alike and see the same batches, so every loss must come out the same to the last bit. What differs is
memory: the loop below is the one everybody writes, and pytc sees that nobody reads the old state again.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import pytc
from pytc.explain.memory import Memory

EPOCHS = 10
BATCH = 32
HELD_OUT = 360
MIB = 2**20


class State(NamedTuple):
    """Everything that changes from step to step."""

    params: dict[str, jax.Array]
    opt_state: optax.OptState


class Images(NamedTuple):
    """Digits of 8 by 8 pixels between 0 and 1, and what they show."""

    pixels: np.ndarray
    labels: np.ndarray


def load() -> tuple[Images, Images]:
    """The 1,797 digits that come with scikit-learn: those to train on, and those held out."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    return Images(pixels[HELD_OUT:], labels[HELD_OUT:]), Images(pixels[:HELD_OUT], labels[:HELD_OUT])


def batches(images: Images, epoch: int) -> Iterator[Images]:
    """One pass over the digits in a new order, each moved by up to a pixel. The same epoch gives the same batches."""
    rng = np.random.default_rng(epoch + 1)
    order = rng.permutation(len(images.labels))
    for chosen in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
        down, right = rng.integers(-1, 2, 2)
        padded = np.pad(images.pixels[chosen], ((0, 0), (1, 1), (1, 1), (0, 0)))
        yield Images(padded[:, 1 + down : 9 + down, 1 + right : 9 + right], images.labels[chosen])


def init(seed: int) -> State:
    """Two convolutions, each followed by a halving of the image, and two dense layers."""
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense1": (2 * 2 * 64, 1024), "dense2": (1024, 10)}
    initialise = jax.nn.initializers.he_normal()
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    params = {name: initialise(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}
    params |= {f"{name}_bias": jnp.zeros(shape[-1]) for name, shape in shapes.items()}
    return State(params, optimizer.init(params))


def logits(params: dict[str, jax.Array], pixels: jax.Array) -> jax.Array:
    """The network."""
    x = pixels
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + params[f"{name}_bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ params["dense1"] + params["dense1_bias"])
    return x @ params["dense2"] + params["dense2_bias"]


optimizer = optax.adamw(optax.cosine_decay_schedule(2e-3, EPOCHS * 44), weight_decay=1e-3)


def step(state: State, batch: Images) -> tuple[State, jax.Array]:
    """One step of AdamW."""

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, batch.pixels), batch.labels).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    return State(optax.apply_updates(state.params, updates), opt_state), value


@jax.jit
def guess(params: dict[str, jax.Array], pixels: jax.Array) -> jax.Array:
    """The digits that the network sees."""
    return jnp.argmax(logits(params, pixels), axis=-1)


class Run(NamedTuple):
    """What a training run left behind."""

    losses: np.ndarray
    guesses: np.ndarray
    seconds: float
    state: State


def train(name: str, step: Callable[..., Any], training: Images, held_out: Images, epochs: int = EPOCHS) -> Run:
    """The loop that everybody writes. It is the same for every kind of `step`."""
    state = init(seed=0)
    losses = []
    start = time.perf_counter()
    for epoch in range(epochs):
        for batch in batches(training, epoch):
            state, loss = step(state, batch)
            losses.append(loss)
        guesses = np.asarray(guess(state.params, held_out.pixels))
        progress(name, epoch + 1, epochs, float(loss), float(np.mean(guesses == held_out.labels)))
    return Run(np.asarray(losses), guesses, time.perf_counter() - start, state)


def progress(name: str, done: int, epochs: int, loss: float, accuracy: float) -> None:
    """A line that is written over on a terminal; elsewhere, its last state."""
    if not sys.stdout.isatty() and done < epochs:
        return
    bar = "█" * (24 * done // epochs)
    line = f"  {name:<12} {bar:░<24} epoch {done:2d}/{epochs}   loss {loss:.4f}   held-out accuracy {accuracy:6.2%}"
    print(f"\r{line}", end="\n" if done == epochs else "", flush=True)


def draw(images: Images, guesses: np.ndarray) -> str:
    """Some of the held-out digits, the wrong guesses first, as many as fit the terminal."""
    columns = max(1, min(8, shutil.get_terminal_size().columns // 18))
    wrong = guesses != images.labels
    shown = np.argsort(~wrong, kind="stable")[:columns]
    shades = np.array(list(" ░▒▓█"))[np.rint(images.pixels[shown, :, :, 0] * 4).astype(int)]
    rows = ["  ".join("".join(np.repeat(digit[row], 2)) for digit in shades) for row in range(8)]
    rows.append("  ".join(f"{f'{guesses[i]}' + (f', is {images.labels[i]}' if wrong[i] else ''):^16}" for i in shown))
    return "\n".join(f"  {row}" for row in rows)


def table(memory: Memory) -> str:
    """What one step needs by the compiler's own word, without donation, with it by hand, and with pytc."""
    rows = {
        "jax.jit": memory.undonated,
        f"jax.jit, best by hand: {' and '.join(memory.by_hand.parameters)} donated": memory.by_hand.footprint,
        "pytc.compile, nothing written": memory.program,
    }
    lines = [f"  {'one step needs (MiB)':<44}{'total':>8}{'alias':>8}{'temp':>8}"]
    for name, needs in rows.items():
        lines.append(f"  {name:<44}" + "".join(f"{size / MIB:8.2f}" for size in (needs.total, needs.alias, needs.temp)))
    return "\n".join(lines)


def main() -> None:
    """Train, compare, explain. Any difference between the two runs is an error."""
    training, held_out = load()
    print(f"{len(training.labels)} handwritten digits to train on, {len(held_out.labels)} held out\n")
    automatic = pytc.compile(step)
    reference = train("jax.jit", jax.jit(step), training, held_out)
    ours = train("pytc.compile", automatic, training, held_out)

    same = reference.losses.tobytes() == ours.losses.tobytes()
    print(f"\n  {len(ours.losses)} losses, equal bit for bit: {'yes' if same else 'NO'}")
    print(f"  {reference.seconds:.1f} s and {ours.seconds:.1f} s, compilation included\n")
    print(draw(held_out, ours.guesses))

    explanation = pytc.explain(automatic, ours.state, next(batches(training, 0)))
    print(f"\n{explanation.text(rows=9)}\n\n{pytc.explain(automatic)}\n\n{table(explanation.memory)}")

    accuracy = float(np.mean(ours.guesses == held_out.labels))
    print(f"\n  held-out accuracy {accuracy:.2%}")
    if not same or accuracy < 0.97:
        raise SystemExit(
            "the losses differ from those of jax.jit" if not same else "less than 97% of the held-out digits"
        )


if __name__ == "__main__":
    main()
