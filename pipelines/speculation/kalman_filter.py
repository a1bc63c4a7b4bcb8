"""KalmanFilter: estimates of several costs that were measured once, corrected by the times of later passes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOISE = 0.1  # standard deviation of the logarithm of one measured time
CREDIBLE = 2.0  # standard deviations beyond which an error is clipped: a stall must not spoil the plan
FORGET = 0.0005  # share of what was learnt that is forgotten with each time, so that what was once slow is tried again


class KalmanFilter:
    """A Gaussian over the logarithms of the ratios between costs and their first measurements.

    mean: float64 [costs], 0 at first and in the long run without new times.
    prior: the covariance at first and in the long run, float64 [costs, costs]; costs that change together are
        correlated.
    forget: the share of the way back to the prior that is covered before each new time.
    doubt: the share of the way back to the prior covariance that is covered after a clipped error. A second one is then
        believed sooner, since it is unlikely to be another stall.

    Each new time is one step of a Kalman filter, linear in the logarithms (Kalman, A new approach to linear filtering
    and prediction problems, 1960).
    """

    def __init__(self, prior: NDArray[np.float64], forget: float = FORGET, doubt: float = 0.0) -> None:
        self.mean = np.zeros(len(prior))
        self._prior = prior
        self._covariance = prior.copy()
        self._forget = forget
        self._doubt = doubt

    def update(self, shares: NDArray[np.float64], error: float) -> None:
        """Learn from a time whose logarithm was `error` above the prediction.

        shares: float64 [costs], the derivative of that logarithm by the logarithm of each cost.
        """
        self.forget()
        covariance = self._covariance @ shares
        variance = covariance @ shares + NOISE**2
        bound = CREDIBLE * np.sqrt(variance)
        self.mean += covariance * (np.clip(error, -bound, bound) / variance)
        self._covariance -= np.outer(covariance, covariance) / variance
        if abs(error) > bound:
            self._covariance += self._doubt * (self._prior - self._covariance)

    @property
    def deviation(self) -> NDArray[np.float64]:
        """Standard deviations of the logarithms, float64 [costs]."""
        return np.sqrt(np.diag(self._covariance))

    def forget(self, times: int = 1) -> None:
        """Go back towards the prior by the share `forget`, `times` times."""
        kept = (1 - self._forget) ** times
        self.mean *= kept
        self._covariance += (1 - kept**2) * (self._prior - self._covariance)
