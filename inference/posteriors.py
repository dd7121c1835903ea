"""The kinds of posteriors that inferences return."""

from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.soft.posterior import SoftPosterior

AnyPosterior = Posterior | SoftPosterior | SumPosterior
