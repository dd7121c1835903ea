"""Other packages' models with their defaults, each with the methods that scores need."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

__all__ = ["PEERS"]

_LEAVES = {"max_leaf_nodes": [2, 3, 5, 8, 12, 20, 40, 80]}
_NUM_FOLDS = 5


def _cart(is_classes: bool) -> GridSearchCV:
    """Make a tree of scikit-learn whose number of leaves is chosen by cross-validation."""
    tree = DecisionTreeClassifier if is_classes else DecisionTreeRegressor
    score = "accuracy" if is_classes else "neg_mean_squared_error"
    return GridSearchCV(tree(random_state=0), _LEAVES, scoring=score, cv=_NUM_FOLDS)


def _forest(is_classes: bool) -> Any:
    return (RandomForestClassifier if is_classes else RandomForestRegressor)(random_state=0)


def _xgboost(is_classes: bool) -> Any:
    import xgboost

    return (xgboost.XGBClassifier if is_classes else xgboost.XGBRegressor)(random_state=0)


def _lightgbm(is_classes: bool) -> Any:
    import lightgbm

    kind = lightgbm.LGBMClassifier if is_classes else lightgbm.LGBMRegressor
    return kind(random_state=0, verbose=-1)


def _ebm(is_classes: bool) -> Any:
    from interpret import glassbox

    kind = "Classifier" if is_classes else "Regressor"
    return getattr(glassbox, f"ExplainableBoosting{kind}")(random_state=0, n_jobs=1)


class _SumOfTrees(ABC):
    """A sum of trees of another package, for two classes or for numbers.

    Parameters
    ----------
    is_classes
        Whether targets are the classes 0 and 1.
    """

    classes_ = np.array([0, 1])

    def __init__(self, is_classes: bool):
        self.is_classes = is_classes

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Sample the posterior."""
        self._sample(X, y)
        return self

    @abstractmethod
    def _sample(self, X: np.ndarray, y: np.ndarray) -> None:
        """Sample the posterior with the package's defaults."""

    @abstractmethod
    def _predict(self, X: np.ndarray) -> np.ndarray:
        """Get probabilities of class 1 [m], or draws of new targets [k, m]."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Get class probabilities [m, 2]."""
        of_one = self._predict(X)
        return np.stack([1 - of_one, of_one], axis=1)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Get means of new targets [m]."""
        return self._predict(X).mean(axis=0)

    def sample_predictive(self, X: np.ndarray, draws: int) -> np.ndarray:
        """Draw new targets [k, m], as many as asked for or as there are."""
        found = self._predict(X)
        return found[np.linspace(0, len(found) - 1, min(draws, len(found))).astype(int)]

    def predict_interval(self, X: np.ndarray, level: float) -> np.ndarray:
        """Get equal-tailed intervals [m, 2]."""
        tails = (1 - level) / 2, (1 + level) / 2
        return np.quantile(self._predict(X), tails, axis=0).T


class _StochTree(_SumOfTrees):
    """stochtree's scikit-learn estimators: 10 grow-from-root sweeps, then 100 of one chain."""

    def __init__(self, is_classes: bool):
        import stochtree

        super().__init__(is_classes)
        kind = "BinaryClassifier" if is_classes else "Regressor"
        self.model = getattr(stochtree, f"StochTreeBART{kind}")(general_params={"random_seed": 0})

    def _sample(self, X: np.ndarray, y: np.ndarray) -> None:
        self.model.fit(X, y)

    def _predict(self, X: np.ndarray) -> np.ndarray:
        if self.is_classes:
            return self.model.predict_proba(X)[:, 1]
        means = self.model.model_.predict(X, type="posterior", terms="y_hat")
        noise = np.sqrt(self.model.model_.global_var_samples)
        return (means + noise * np.random.default_rng(0).normal(size=means.shape)).T


class _Bartz(_SumOfTrees):
    """bartz: four chains of 1,000 and 1,000 sweeps."""

    def __init__(self, is_classes: bool):
        import bartz

        super().__init__(is_classes)
        self.make = bartz.Bart

    def _sample(self, X: np.ndarray, y: np.ndarray) -> None:
        kind = "binary" if self.is_classes else "continuous"
        self.model = self.make(
            X.T.astype(np.float32), y.astype(np.float32), outcome_type=kind,
            printevery=None, pbar=False,
        )  # fmt: skip

    def _predict(self, X: np.ndarray) -> np.ndarray:
        import jax

        X = X.T.astype(np.float32)
        if self.is_classes:
            return np.asarray(self.model.predict(X, kind="mean"))
        draws = self.model.predict(X, kind="outcome_samples", key=jax.random.key(0))
        return np.asarray(draws).reshape(-1, X.shape[1])


class _PyMCBART(_SumOfTrees):
    """pymc-bart: 50 trees, pm.sample's chains of 1,000 and 1,000 steps; probit links of classes."""

    def __init__(self, is_classes: bool):
        import pymc
        import pymc_bart

        super().__init__(is_classes)
        self.pymc, self.bart = pymc, pymc_bart

    def _sample(self, X: np.ndarray, y: np.ndarray) -> None:
        pm = self.pymc
        with pm.Model() as self.model:
            inputs = pm.Data("inputs", X)
            centre, scale = (0.0, 1.0) if self.is_classes else (y.mean(), y.std())
            targets = (y - centre) / scale
            sums = self.bart.BART("sums", inputs, targets)
            if self.is_classes:
                chance = pm.Deterministic("chance", pm.math.invprobit(sums))
                pm.Bernoulli("targets", chance, observed=y, shape=sums.shape)
            else:
                noise = pm.HalfNormal("noise", 1.0)
                pm.Normal("targets", sums, noise, observed=targets, shape=sums.shape)
            self.found = pm.sample(chains=4, cores=1, random_seed=0, progressbar=False)
        self.centre, self.scale = centre, scale

    def _predict(self, X: np.ndarray) -> np.ndarray:
        name = "chance" if self.is_classes else "targets"
        with self.model:
            self.pymc.set_data({"inputs": X})
            new = self.pymc.sample_posterior_predictive(
                self.found, var_names=[name], random_seed=0, progressbar=False, predictions=True
            )
        draws = np.asarray(new.predictions[name]).reshape(-1, len(X))
        return draws.mean(axis=0) if self.is_classes else self.centre + self.scale * draws


PEERS: dict[str, Callable[[bool], Any]] = {
    "CART, tuned": _cart,
    "random forest": _forest,
    "XGBoost": _xgboost,
    "LightGBM": _lightgbm,
    "EBM (interpret)": _ebm,
    "stochtree": _StochTree,
    "bartz": _Bartz,
    "pymc-bart": _PyMCBART,
}
