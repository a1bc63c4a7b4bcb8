"""KalmanFilter: what is thought of several costs that were measured once, as passes go on to show what they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOISE = 0.1  # of the logarithm of one time, as a standard deviation
CREDIBLE = 2.0  # standard deviations that one time may be off, to be believed in full: a stall must not spoil the plan
FORGET = 0.0005  # share of what was learnt that each time lets go of, else what once was dear is never tried again


class KalmanFilter:
    """A Gaussian over the logarithms of the factors by which costs differ from those that were measured.

    mean: float64 [costs]. To begin with, and in the long run where nothing is seen, it is 0, with the covariance
        `prior`, float64 [costs, costs]: costs of which one tells about the other are correlated.

    Each time that is seen moves it by one step of a Kalman filter, linear in the logarithms (Kalman, A new approach to
    linear filtering and prediction problems, 1960), and between two of them it goes back a little to where it began, by
    the share `forget`. After a time that could not be believed in full, it goes the share `doubt` of the way back to
    the uncertainty that it began with: a second such time is believed sooner, as it is hardly another stall.
    """

    def __init__(self, prior: NDArray[np.float64], forget: float = FORGET, doubt: float = 0.0) -> None:
        self.mean = np.zeros(len(prior))
        self._prior = prior
        self._covariance = prior.copy()
        self._forget = forget
        self._doubt = doubt

    def update(self, shares: NDArray[np.float64], error: float) -> None:
        """Learn from a time whose logarithm was `error` above what was believed. shares: float64 [costs], by how much
        that logarithm grows with the one of each cost."""
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
        """How far each cost may be from its mean: float64 [costs], standard deviations."""
        return np.sqrt(np.diag(self._covariance))

    def forget(self) -> None:
        """Go back a little to where it began, as nothing was seen."""
        self.mean *= 1 - self._forget
        self._covariance += 2 * self._forget * (self._prior - self._covariance)
