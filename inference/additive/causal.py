"""A sum of trees for the targets without treatment, and one for the effect of the treatment.

A Bayesian causal forest explains the target of a row with features x and treatment z by

    mu(x) + (b_0 + (b_1 - b_0) z) tau(x) + noise,

where mu and tau are sums of trees with priors of their own. Of a treatment that is given or not,
the codes b_0 and b_1 are normal with mean 0 and variance 1/2 a priori, so that the prior is the
same whichever arm is called treated; the effect of the treatment is (b_1 - b_0) tau(x). Of doses
with the mean m they are -m and 1 - m, so that mu is the target at the mean dose.

Given tau and the codes, mu has normal targets; given these, tau has the targets
(y - mu) / (b_0 + (b_1 - b_0) z), whose precisions have the squared divisor as a factor; given mu
and tau, the codes are normal. So all is drawn from full conditionals.

References
----------
Hahn, Murray and Carvalho 2020, Bayesian regression tree models for causal inference:
regularization, confounding, and heterogeneous effects, section 5.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bdtppl.inference.additive.complete_trees import evaluate
from bdtppl.inference.additive.kernel import AdditiveKernel, AdditiveState
from bdtppl.inference.additive.posterior import CODE_VARIANCE, SumPosterior, TreatmentEffect
from bdtppl.inference.additive.row_sums import Room
from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import AdditivePrior

_EFFECT = "effect_"


class CausalState(NamedTuple):
    """One state of a chain.

    Attributes
    ----------
    control
        The sum mu, and the noise; of ``left`` all is subtracted, the treatment's part as well.
    effect
        The sum tau.
    coding
        float64 [2]; b_0 and b_1.
    """

    control: AdditiveState
    effect: AdditiveState
    coding: np.ndarray


@dataclass(frozen=True, eq=False)
class CausalKernel:
    """Draws both sums given real targets.

    Attributes
    ----------
    control
        Kernel of mu given the targets.
    effect
        Kernel of tau on the same rows, whose own targets are not used.
    feature
        Feature of the treatment.
    is_coded
        Whether the treatment is 0 or 1, and its codes are drawn.
    """

    control: AdditiveKernel
    effect: AdditiveKernel
    feature: int
    is_coded: bool

    @property
    def prior(self) -> AdditivePrior:
        """Prior of mu."""
        return self.control.prior

    @property
    def design(self) -> Design:
        """Training rows as the trees of mu read them."""
        return self.control.design

    @property
    def y(self) -> np.ndarray:
        """Targets [n]."""
        return self.control.y

    @property
    def treatment(self) -> np.ndarray:
        """Treatments of the training rows, float64 [n]."""
        return self.design.matrix[:, self.feature]

    def make_room(self) -> tuple[Room, Room]:
        """Allocate what `advance` works in."""
        return self.control.make_room(), self.effect.make_room()

    def init(self) -> CausalState:
        """Start without trees, and at codes of 0 and 1, or those of doses."""
        mean = np.average(self.treatment, weights=self.control.rows.weights)
        coding = np.array([0.0, 1.0]) - (0.0 if self.is_coded else mean)
        return CausalState(self.control.init(), self.effect.init(), coding)

    def begin(self, generator: np.random.Generator, state: CausalState) -> CausalState:
        """Draw the linear terms of mu and the noise some times, before any tree has grown."""
        return state._replace(control=self.control.begin(generator, state.control))

    def advance(
        self,
        generator: np.random.Generator,
        state: CausalState,
        room: tuple[Room, Room],
        *,
        grows: bool = False,
    ) -> CausalState:
        """Redraw everything once, in place."""
        control, effect, coding = state
        tau, factor = self.tau(effect), self._factor(coding)
        control.target[0] = self.y - self.control.offsets[0] - factor * tau
        control = self.control.advance(generator, control, room[0], grows=grows)
        left = control.left[0]
        left += factor * tau  # targets less mu
        precision = self.control.rows.weights / self.control.variances(control)
        is_told = factor != 0
        effect.target[0] = np.divide(left, factor, out=np.zeros_like(left), where=is_told)
        effect.left[0] = effect.target[0] - tau
        effect = self.effect.advance(
            generator, effect, room[1], grows=grows, precision=precision * factor**2
        )
        tau = self.tau(effect)
        if self.is_coded:
            for code in (0, 1):
                own = self.treatment == code
                total = 1 / CODE_VARIANCE + precision[own] @ tau[own] ** 2
                mean = precision[own] @ (tau[own] * left[own]) / total
                coding[code] = mean + generator.standard_normal() / np.sqrt(total)
        left -= self._factor(coding) * tau
        return CausalState(control, effect, coding)

    def tau(self, effect: AdditiveState) -> np.ndarray:
        """Evaluate tau at the training rows, float64 [n]."""
        total = np.empty(len(self.y))
        evaluate(self.effect.rows, effect.rule[0], effect.value[0], False, total)
        return total

    def _factor(self, coding: np.ndarray) -> np.ndarray:
        return coding[0] + (coding[1] - coding[0]) * self.treatment

    def log_likelihood(self, state: CausalState) -> float:
        """Log likelihood of all targets given a state."""
        return self.control.log_likelihood(state.control)

    def drawn(self, state: CausalState) -> dict[str, np.ndarray]:
        """Return the parts of a state that its draw keeps, by name."""
        effect = self.effect.drawn(state.effect)
        kept = {f"{_EFFECT}{name}": part for name, part in effect.items()}
        return self.control.drawn(state.control) | kept | {"coding": state.coding}

    def posterior(self, drawn: dict[str, Any], **more: Any) -> SumPosterior:
        """Make a posterior of draws [chain, draw, ...] by name."""
        own = {name: part for name, part in drawn.items() if name != "coding"}
        kept = {name: own.pop(name) for name in drawn if name.startswith(_EFFECT)}
        kept = {name.removeprefix(_EFFECT): part for name, part in kept.items()}
        effect = TreatmentEffect(self.effect.posterior(kept), drawn["coding"], self.feature)
        return self.control.posterior(own, effect=effect, **more)
