"""Find what a failure rate depends on: Poisson regression on cells of unit-time.

This is a model of proportional hazards with a constant rate inside each cell.

Units      Exposure is in any unit of time, and rates are per that unit.
Symbols    n_i  number of failures in cell i
           e_i  exposure of cell i
           x_i  row of covariates of cell i
           h_i  leverage of cell i
           b    coefficients
           m_i = e_i exp(x_i b)
Method     The score of a Poisson model with Firth's correction (Jeffreys' prior on b) is solved for
           b: sum of x_i (n_i + h_i / 2 - m_i) = 0. This is done by Newton's method with halved
           steps. Without covariates the rate is (n + 1/2) / e, the posterior mean of `rates.py`. A
           level without any failure has a finite rate instead of exp(-infinity).
Covariance It is the inverse of the information. With `clusters`, it is the sandwich estimate over
           clusters, whose cells vary together.
Sources    Holford, Biometrics 36, 1980 (Poisson on unit-time); Firth, Biometrika 80, 1993; White
           1982 (sandwich).
Limits     Covariates that the exposure cannot tell apart are an error, which names one of them. A
           cell without exposure is left out. The sandwich estimate is one for large samples: with
           fewer than about 20 clusters it is too narrow.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outlast.errors import UsageError

_ROUNDS = 200
_HALVINGS = 40
_CLOSE = 1e-9
_SINGULAR = 1e-9
_EXPONENT_MAX = 700.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PoissonFit:
    """A fitted regression.

    `coefficients[j]` belongs to the covariate `names[j]`. Its exponential is the factor on the
    rate. The head of this module explains `covariance`.
    """

    names: tuple[str, ...]
    coefficients: Floats
    covariance: Floats

    @property
    def standard_errors(self) -> Floats:
        return np.sqrt(np.diag(self.covariance))

    def rate(self, covariates: ArrayLike, *, coefficients: Floats | None = None) -> Floats:
        """Return the rate per unit of exposure for each row of covariates.

        Other coefficients than the fitted ones may be given.
        """
        chosen = self.coefficients if coefficients is None else coefficients
        return _exp(np.asarray(covariates, dtype=np.float64) @ chosen)


def fit_poisson(
    covariates: ArrayLike,
    *,
    names: Sequence[str],
    exposure: ArrayLike,
    count: ArrayLike,
    clusters: ArrayLike | None = None,
) -> PoissonFit:
    """Fit the regression.

    covariates                  (cells, covariates), with a column of ones for the intercept
    exposure, count, clusters   (cells,)

    Raises UsageError if the exposure cannot tell the covariates apart, or if an exposure or a count
    is impossible.
    """
    x, e, n = (np.asarray(part, dtype=np.float64) for part in (covariates, exposure, count))
    if x.ndim != 2 or x.shape[1] != len(names) or not (len(x) == len(e) == len(n)):
        raise UsageError(
            f"cells: {x.shape} covariates, {e.shape} exposures, {n.shape} counts, {len(names)}"
            " names",
            hint="give each cell one of each",
        )
    if not (
        np.isfinite(e).all()
        and (e >= 0).all()
        and np.isfinite(n).all()
        and (n >= 0).all()
        and np.isfinite(x).all()
    ):
        raise UsageError(
            "a cell's exposure or count is below 0 or not finite",
            hint="exposures are unit-time, counts are failures",
        )
    if ((e == 0) & (n > 0)).any():
        raise UsageError(
            "a cell has failures and no exposure",
            hint="a failure belongs where its unit was observed",
        )
    used = e > 0
    x, e, n = x[used], e[used], n[used]
    _tell_apart(x, names)
    b = _solve(x, e, n)
    mean = e * _exp(x @ b)
    bread = np.asarray(np.linalg.inv(x.T @ (x * mean[:, None])), dtype=np.float64)
    if clusters is None:
        return PoissonFit(tuple(names), b, bread)
    _, where = np.unique(np.asarray(clusters)[used], return_inverse=True)
    scores = np.zeros((int(where.max()) + 1, x.shape[1]))
    np.add.at(scores, where, x * (n - mean)[:, None])
    many = len(scores)
    return PoissonFit(
        tuple(names),
        b,
        np.asarray(
            bread @ (scores.T @ scores) @ bread * (many / max(1, many - 1)), dtype=np.float64
        ),
    )


def _tell_apart(x: Floats, names: Sequence[str]) -> None:
    """Raise UsageError for a column that is a combination of the columns before it."""
    kept: list[Floats] = []
    for name, column in zip(names, x.T, strict=True):
        left = column.copy()
        for _ in range(2):  # a second time, because rounding leaves a rest after the first
            for basis in kept:
                left -= basis * (basis @ left)
        size = float(np.linalg.norm(left))
        if size <= _SINGULAR * max(1.0, float(np.linalg.norm(column))):
            raise UsageError(
                f"the data cannot tell what {name} does: nothing was observed that differs in it"
                " alone",
                hint=f"leave {name} out, or join levels",
            )
        kept.append(left / size)


def _solve(x: Floats, e: Floats, n: Floats) -> Floats:
    b = np.zeros(x.shape[1])
    # begin with the same rate in all cells, if x has an intercept
    b += np.linalg.lstsq(x, np.full(len(x), np.log((n.sum() + 0.5) / e.sum())), rcond=None)[0]
    reached = _penalised(b, x, e, n)
    for _ in range(_ROUNDS):
        mean = e * _exp(x @ b)
        root = x * np.sqrt(mean)[:, None]
        inverse = np.linalg.inv(root.T @ root)
        leverage = np.einsum("ij,jk,ik->i", root, inverse, root)
        step = inverse @ (x.T @ (n + leverage / 2 - mean))
        new = _penalised(b + step, x, e, n)
        for _ in range(_HALVINGS):
            if new >= reached - _CLOSE * (1 + abs(reached)):
                break
            step = step / 2
            new = _penalised(b + step, x, e, n)
        b, reached = b + step, new
        if np.abs(step).max() <= _CLOSE:
            break
    return np.asarray(b)


def _penalised(b: Floats, x: Floats, e: Floats, n: Floats) -> float:
    """Return the log-likelihood plus half the log-determinant of the information.

    It is -inf if that cannot be computed.
    """
    linear = x @ b
    mean = e * _exp(linear)
    sign, log_determinant = np.linalg.slogdet(x.T @ (x * mean[:, None]))
    return float(n @ linear - mean.sum() + log_determinant / 2) if sign > 0 else -np.inf


def _exp(linear: Floats) -> Floats:
    return np.asarray(np.exp(np.clip(linear, -_EXPONENT_MAX, _EXPONENT_MAX)))
