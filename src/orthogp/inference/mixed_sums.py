r"""Sums over pairs (i, j) by their difference, of terms that depend on their sum as well.

    s_l = Σ_{i−j=l} W_i W'_j H_{(i+j) mod T},      l = −(T−1) … T−1

This is no convolution: all T² products are formed. They are so in blocks of rows, each a sum of
shifted copies of the same few vectors, which stay in the cache; nothing of size T² is stored. The
derivatives are sums of the same kinds and are written out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from orthogp.precision import AnyArray

# Rows of a block, and the fewest samples that are worth blocks.
_ROWS, _FEWEST = 16, 64


@jax.custom_vjp
def mixed_sums(
    W: Float[AnyArray, " t"], other_W: Float[AnyArray, " t"], H: Float[AnyArray, " t"]
) -> Float[AnyArray, " 2t-1"]:
    """Return s; see the module's docstring."""
    # With o = l + T − 1 and H reversed: s_o = Σ_i W_i W'_{T−1−(o−i)} H_{2i−o−1 mod T}.
    return _by_shift(W, other_W[::-1], jnp.tile(H[::-1], 4), 2 * len(W))


def _forward(W, other_W, H):
    return mixed_sums(W, other_W, H), (W, other_W, H)


def _backward(residuals, cotangent):
    W, other_W, H = residuals
    t = len(W)
    backwards, periodic = cotangent[::-1], jnp.tile(H, 2)
    # By H_p: Σ_{i+j=p} W_i W'_j g_{i−j}, collected by p < 2T − 1 and wrapped.
    by_sum = _by_shift(W, other_W, jnp.pad(backwards, (t + 1, 2 * t)), 2 * t)
    return (
        _by_row(other_W, cotangent, periodic),
        _by_row(W, backwards, periodic),
        by_sum[:t] + jnp.pad(by_sum[t:], (0, 1)),
    )


mixed_sums.defvjp(_forward, _backward)


def _by_shift(
    W: Float[AnyArray, " t"],
    A: Float[AnyArray, " t"],
    C: Float[AnyArray, " c"],
    offset: int,
) -> Float[AnyArray, " 2t-1"]:
    """Return Σ_i W_i A_{o−i} C_{offset+o−2i} for o = 0 … 2T−2, A being zero outside its range."""
    t = len(W)
    rows, blocks = _blocks(W)
    length, margin = t + rows - 1, rows - 1
    padded = jnp.pad(A, margin)
    copies = [padded[margin - b : margin - b + length] for b in range(rows)]

    def add_block(sums, block):
        first, weights = block
        near = lax.dynamic_slice(C, (offset - first - 2 * margin,), (length + 2 * margin,))
        own = lax.dynamic_slice(sums, (first,), (length,))
        for b, copy in enumerate(copies):
            skipped = 2 * (margin - b)
            own += weights[b] * copy * lax.slice(near, (skipped,), (skipped + length,))
        return lax.dynamic_update_slice(sums, own, (first,)), None

    start = jnp.zeros(blocks.size + t - 1)
    return lax.scan(add_block, start, (_firsts(blocks), blocks))[0][: 2 * t - 1]


def _by_row(
    W: Float[AnyArray, " t"], A: Float[AnyArray, " 2t-1"], H: Float[AnyArray, " 2t"]
) -> Float[AnyArray, " t"]:
    """Return Σ_j W_j A_{T−1+i−j} H_{i+j} for i = 0 … T−1."""
    t = len(W)
    rows, blocks = _blocks(W)
    margin, surplus = rows - 1, blocks.size - t
    padded_A, padded_H = jnp.pad(A, (margin + surplus, 0)), jnp.pad(H, (0, 2 * rows))

    def add_block(sums, block):
        first, weights = block
        near_A = lax.dynamic_slice(padded_A, (t - 1 - first + surplus,), (t + margin,))
        near_H = lax.dynamic_slice(padded_H, (first,), (t + margin,))
        for b in range(rows):
            A_b = lax.slice(near_A, (margin - b,), (margin - b + t,))
            sums += weights[b] * A_b * lax.slice(near_H, (b,), (b + t,))
        return sums, None

    return lax.scan(add_block, jnp.zeros(t), (_firsts(blocks), blocks))[0]


def _blocks(W: Float[AnyArray, " t"]) -> tuple[int, Float[AnyArray, "blocks rows"]]:
    """Return how many rows a block has, and W by blocks, zeros at the end."""
    rows = _ROWS if len(W) >= _FEWEST else 1
    return rows, jnp.pad(W, (0, -len(W) % rows)).reshape(-1, rows)


def _firsts(blocks: AnyArray) -> AnyArray:
    """Return the first row of each block."""
    return blocks.shape[1] * jnp.arange(len(blocks))
