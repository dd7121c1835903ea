"""Scales of real targets: a transformation fixed before the fit, with its Jacobian."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import boxcox1p, inv_boxcox1p

from bdtppl.models.wording import number

ScaleName = Literal["identity", "log", "log1p", "yeo-johnson"]

_LEAST_TARGET = {"log": 0.0, "log1p": -1.0}  # which targets exceed
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_MOST_POWER = 2.0


@dataclass(frozen=True)
class TargetScale:
    """An increasing transformation z = t(y) of targets y.

    Attributes
    ----------
    kind
        "identity", "log" (log y), "log1p" (log(1 + y)) or "yeo-johnson" (Yeo and Johnson 2000).
    power
        Power of Yeo-Johnson, in [0, 2], for which every z has a y and normal z have finite moments
        of y. It is below 1 for targets with a long upper tail, above 1 for a long lower tail. It
        hardly changes targets that are all much smaller than 1.

    Raises
    ------
    ValueError
        If there is no such scale, or the power is not in [0, 2].

    Examples
    --------
    >>> scale = TargetScale("log")
    >>> float(scale.inverse(scale.forward(np.array(3.0))).round(12))
    3.0
    """

    kind: ScaleName = "identity"
    power: float = 1.0

    def __post_init__(self):
        if self.kind not in get_args(ScaleName) or not 0 <= self.power <= _MOST_POWER:
            raise ValueError(f"There is no scale {self.kind!r} of power {self.power!r}.")

    @classmethod
    def fitted(cls, kind: ScaleName, y: np.ndarray, weights: np.ndarray) -> "TargetScale":
        """Return the scale of a kind, with the maximum-likelihood power for Yeo-Johnson.

        Parameters
        ----------
        kind
            Kind of the scale.
        y, weights
            Targets and their weights, float64 [n]; transformed targets are assumed to be normal.
        """
        if kind != "yeo-johnson" or np.ptp(y) == 0:
            return cls(kind)
        share = weights / weights.sum()

        def loss(power: float) -> float:
            scale = cls(kind, power)
            z = scale.forward(y)
            unit = np.abs(z).max()
            variance = share @ (z / unit - share @ z / unit) ** 2
            value = 0.5 * np.log(variance) + np.log(unit) - share @ scale.log_slope(y)
            return value if np.isfinite(value) else np.finfo(float).max

        with np.errstate(all="ignore"):  # powers that leave float64's range are excluded
            found: Any = minimize_scalar(loss, bounds=(0, _MOST_POWER))
        return cls(kind, float(found.x))

    def require(self, y: np.ndarray, rows: np.ndarray) -> None:
        """Raise ValueError at the first target [n] without a value on the scale.

        Parameters
        ----------
        y
            Targets.
        rows
            int [n]; row numbers in errors.
        """
        least = _LEAST_TARGET.get(self.kind, -np.inf)
        bad = np.flatnonzero(y <= least)
        if bad.size:
            raise ValueError(
                f"y, row {rows[bad[0]]}: target_scale={self.kind!r} needs targets above "
                f"{least:g}; got {y[bad[0]]:g}."
            )

    def forward(self, y: np.ndarray) -> np.ndarray:
        """Transform targets of any shape; those below the range of the scale become -inf."""
        if self.kind == "identity":
            return y
        y = np.asarray(y, np.float64)
        if self.kind == "yeo-johnson":
            return np.copysign(boxcox1p(np.abs(y), self._power_of(y)), y)
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(y, 0)) if self.kind == "log" else np.log1p(np.maximum(y, -1))

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Transform values on the scale, of any shape, back to targets."""
        with np.errstate(over="ignore"):
            if self.kind == "yeo-johnson":
                return np.copysign(inv_boxcox1p(np.abs(z), self._power_of(z)), z)
            return {"identity": np.asarray, "log": np.exp, "log1p": np.expm1}[self.kind](z)

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """Return the log derivative of `forward` at targets; -inf outside the scale."""
        y = np.asarray(y, np.float64)
        if self.kind == "identity":
            return np.zeros(y.shape)
        if self.kind == "yeo-johnson":
            return (self._power_of(y) - 1) * np.log1p(np.abs(y))
        z = self.forward(y)
        return np.where(z > -np.inf, -z, -np.inf)

    def mean_of_normal(self, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        """Return the mean of targets whose values on the scale are normal, of their common shape.

        Yeo-Johnson uses Gauss-Hermite quadrature with 24 nodes, with an error below 2e-4
        deviations, because the third derivative jumps at 0.
        """
        if self.kind == "identity":
            return mean
        if self.kind != "yeo-johnson":
            return self.inverse(mean + 0.5 * np.square(deviation))
        total = np.zeros(np.broadcast_shapes(np.shape(mean), np.shape(deviation)))
        for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
            total += weight * self.inverse(mean + node * deviation)
        return total

    def _power_of(self, value: np.ndarray) -> np.ndarray:
        """Return the powers of Yeo-Johnson's two branches, at targets or transformed values."""
        return np.where(np.asarray(value) >= 0, self.power, 2 - self.power)

    def __str__(self) -> str:
        power = f" of power {number(self.power)}" if self.kind == "yeo-johnson" else ""
        return f"{self.kind}{power}"

    def in_words(self) -> str:
        """Name a transformed target in a sentence.

        Examples
        --------
        >>> TargetScale("log1p").in_words()
        'the target on the scale log1p'
        """
        return "the target" + f" on the scale {self}" * (self != IDENTITY)


IDENTITY = TargetScale()


def skewness(y: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted skewness of targets [n]; 0 if they are constant."""
    share = weights / weights.sum()
    around = y - share @ y
    around = around / (np.abs(around).max() or 1.0)
    variance = share @ around**2
    return float(share @ around**3 / variance**1.5) if variance > 0 else 0.0
