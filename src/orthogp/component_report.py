"""The components of an additive model in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orthogp.kernels import Categorical, Cyclic, Kernel, Product
from orthogp.kernels.additive import ADDITIVE_PREFIX

if TYPE_CHECKING:
    from orthogp.component_models import Component
    from orthogp.regressor import GPRegressor


def describe_components(model: GPRegressor) -> list[str]:
    """Return a line for each component of an additive model, and one for what they leave."""
    components = model.components()
    residual = float(np.mean(model.residual_share_))
    chosen = len(model.trials_) > 1
    return [*describe_choice(model.kernel, chosen), *describe_shares(components, residual)]


def describe_choice(kernel: Any, chosen: bool = False) -> list[str]:
    """Return a line on what a kernel's name stands for, if it was given by name.

    `chosen` says that a model of all columns jointly was tried as well.
    """
    if not isinstance(kernel, str):
        return []
    name = kernel.removeprefix(ADDITIVE_PREFIX)
    why = "" if chosen or name != kernel else ": more than three cannot act jointly on a lattice"
    return [f"  {'model':<12} additive, one {name} kernel on each column{why}"]


def describe_shares(components: Sequence[Component], residual: float | None = None) -> list[str]:
    """Return a line for each component, and one for the share that they leave, if any is known."""
    lines = []
    width = max(len(component.name) for component in components)
    for i, component in enumerate(components):
        label = "components" if i == 0 else ""
        share = float(np.mean(component.share))
        lines.append(
            f"  {label:<12} {component.name:<{width}} {100 * share:6.2f} % of the variance  "
            f"{_kernel(component.kernel)}"
        )
    if residual is not None:
        lines.append(f"  {'':<12} {'residual':<{width}} {100 * residual:6.2f} %")
    shares = (residual or 0.0) + sum(float(np.mean(component.share)) for component in components)
    if shares > 1.2:
        lines.append(
            f"  {'':<12} more than 100 % in all: components of columns that go together cancel in "
            "part"
        )
    return lines


def _kernel(kernel: Kernel) -> str:
    parts = []
    for primitive, _ in kernel.primitives():
        name, own = primitive.label, dict(primitive.parameters())
        shown = [f"{label} {_number(value)}" for label, value in own.items()]
        if isinstance(primitive, Cyclic):
            shown.append(f"period {primitive.period:g}")
        if isinstance(primitive, Categorical):
            shown.append(f"{primitive.levels} levels")
        parts.append(f"{name}: {', '.join(shown)}")
    return (" × " if isinstance(kernel, Product) else " + ").join(parts)


def _number(value: object) -> str:
    array = np.asarray(value, dtype=float)
    if array.size == 1:
        return f"{array.item():.4g}"
    return "[" + ", ".join(f"{entry:.4g}" for entry in array.ravel()) + "]"
