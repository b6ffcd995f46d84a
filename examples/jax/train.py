"""Train a linear classifier of digits with JAX. README.md in the same directory explains it."""

import struct
import typing

import jax
import jax.numpy as jnp
import numpy as np

import trainmaster as tm


def parse(record: memoryview | bytes) -> tuple[typing.Any, int]:
    """Return image and label of a record of pixels. docs/formats/samples.md has the format."""
    version, kind, scale, label, _ = struct.unpack_from("<BBxxfII", record)
    if (version, kind) != (3, 1):
        raise ValueError(f"expected a record of pixels, version 3, found version {version}, type {kind}")
    return np.frombuffer(record[16:], np.uint8) * np.float32(scale), label


def loss(model: typing.Any, x: typing.Any, y: typing.Any) -> typing.Any:
    """Return the mean cross entropy."""
    return -jnp.mean(jax.nn.log_softmax(x @ model["w"] + model["b"])[jnp.arange(len(y)), y])


def main() -> None:
    """Train to the end of the job, and measure the model on the test data."""
    step = jax.jit(jax.value_and_grad(loss))
    model = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
    loader = tm.Loader("mnist/digits-0*", decode=parse, batch_size=32, shuffle=True)
    for x, y in loader:
        value, gradients = step(model, x, y)
        model = jax.tree.map(lambda p, g: p - 0.1 * g, model, gradients)
        loader.report(loss=float(value))
    images, labels = map(np.stack, zip(*map(parse, tm.read_records("mnist/digits-test-*"))))
    accuracy = float(jnp.mean(jnp.argmax(images @ model["w"] + model["b"], axis=1) == labels))
    print(f"test accuracy {accuracy:.1f}")
    loader.close()


if __name__ == "__main__":
    main()
