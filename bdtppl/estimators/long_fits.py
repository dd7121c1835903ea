"""Parameters of long fits, and how such a fit is run, stored and ended."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bdtppl.estimators.checkpoints import Run, keeping, name_of_run
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.inference.run import AnyState, Inference, run
from bdtppl.models.settings import declared_fields
from bdtppl.progress import following


@declared
class ShowsProgress:
    """Inferences that may take long and show their progress."""

    progress: bool = parameter(
        False,
        "Whether to show progress when fitting takes longer than a second.",
        option=False,
        is_last=True,
        is_of_run=False,
    )


@declared
class FansOut:
    """Inferences with independent parts, which several processes or machines can compute."""

    n_jobs: int | None = parameter(
        None,
        "Processes that compute independent parts of fits and predictions, as in scikit-learn: -1 "
        "for one per core. None uses threads of this process, or the active "
        "``joblib.parallel_config``, such as the workers of a dask cluster. The result has the "
        "same bits.",
        option=False,
        is_last=True,
        is_of_run=False,
        is_saved=False,
    )


@declared
class HasCheckpoint:
    """Inferences whose fits can be interrupted and resumed."""

    checkpoint: Any = parameter(
        None,
        "Checkpoint folder. Rerunning an interrupted fit resumes from it and gives the same result "
        "as an uninterrupted fit. The state is stored once a minute, and when the fit ends or is "
        "interrupted. Each run has its own file, named by its settings, seed and data, so other "
        "fits, such as those of a cross-validation, may use the same folder. With "
        "``random_state=None`` a fit resumes with its original seed.",
        option=Path,
        is_of_run=False,
        is_saved=False,
    )

    def _run(
        self: Any, features: Sequence[str], data: Iterable[np.ndarray], **filled_in: Any
    ) -> AbstractContextManager[Run]:
        """Store a run in the folder, if there is one (`bdtppl.estimators.checkpoints.keeping`).

        Parameters
        ----------
        features
            Their names, which priors and constraints may use.
        data
            Arrays that identify the problem: its rows and targets.
        filled_in
            Parameters by name, with defaults filled in.
        """
        seed = self._draw_seed()

        def name() -> str:
            settings = {
                field.name: getattr(self, field.name)
                for field, said in declared_fields(self)
                if said.is_of_run
            }
            settings["random_state"] = None if self.random_state is None else seed
            settings["features"] = list(features)
            return name_of_run(type(self).__name__, settings | filled_in, data)

        return keeping(self.checkpoint, name, seed)


def time_limit(default: float | None) -> Any:
    """Declare the time limit of a run."""
    return parameter(
        default,
        "Wall-clock limit in seconds, without compilation. When it is reached, `fit` stops early "
        "and warns; the result then depends on the machine. None for no limit.",
        above=0,
        is_of_run=False,
    )


@declared
class RunsLong(HasCheckpoint, ShowsProgress):
    """Inferences that run in steps (`bdtppl.inference.run`)."""

    time_limit: float | None = time_limit(None)

    def _run_to_end(
        self: Any,
        inference: Inference[AnyState, Any],
        keeping: AbstractContextManager[Run],
        what: str,
        key: Callable[[int], Any] = jax.random.key,
    ) -> tuple[int, AnyState]:
        """Run an inference until it is done, or until its time is over, and then warn.

        Parameters
        ----------
        inference
            The inference.
        keeping
            Where its states are stored.
        what
            Description of the work.
        key
            Makes the input of the inference from a seed.

        Returns
        -------
        tuple
            The seed of the run and its last state.
        """
        with keeping as kept, following(what, inference.counts, shown=self.progress) as told:
            state = run(
                inference, key(kept.seed), time_limit=self.time_limit, keep=kept, on_progress=told
            )
        if not inference.is_done(state):
            made, whole = inference.num_steps(state)
            warnings.warn(
                f"{what} ended after {made:,} of {whole:,} {inference.counts}: the time_limit of "
                f"{self.time_limit:g} s was over. Raise it, or request less work.",
                ConvergenceWarning,
                stacklevel=4,  # the caller of `fit`
            )
        return kept.seed, state
