"""Latent variables that make the full conditionals of sums of trees normal, for class labels.

Probit: a label is the sign of a normal variable with variance 1 around the sum (Albert and Chib
1993). Logistic: given a Polya-gamma variable, the likelihood of a label is normal with this
variable as precision (Polson, Scott and Windle 2013, theorem 1); its shape is the label's weight.
"""

import math

import numba

_native = numba.njit(cache=True, nogil=True, error_model="numpy")

_LIMIT = 0.64  # where both series cross
_LARGEST = 300.0  # half of a tilt: exponentials stay finite
_LEAST_TILT = 1e-3  # terms of series; at 0 the variance is not a number
_MOST_SUMMED = 8  # exact draws that are summed; for larger shapes the series is faster
_TERMS = 16  # terms of the series, and one more for each unit of the tilt
_LEAST_DRAWN = 1e-6  # of a draw in its shape: else targets would be so far off that sums round


@_native
def _normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@_native
def _term(n, x):
    """Return a term of the alternating series of the density (section 4, after Devroye 2009)."""
    k = n + 0.5
    if x <= _LIMIT:
        return math.pi * k * (2 / (math.pi * x)) ** 1.5 * math.exp(-2 * k * k / x)
    return math.pi * k * math.exp(-0.5 * k * k * math.pi**2 * x)


@_native
def _truncated_inverse_gaussian(z, generator):
    """Draw from the inverse Gaussian distribution of mean 1 / z and shape 1, below the limit."""
    if z * _LIMIT < 1:
        while True:
            first, second = generator.standard_exponential(), generator.standard_exponential()
            while first * first > 2 * second / _LIMIT:
                first, second = generator.standard_exponential(), generator.standard_exponential()
            x = _LIMIT / (1 + _LIMIT * first) ** 2
            if generator.random() <= math.exp(-0.5 * z * z * x):
                return x
    mean = 1 / z
    while True:
        y = generator.standard_normal() ** 2
        x = mean + 0.5 * mean * mean * y
        x -= 0.5 * mean * math.sqrt(4 * mean * y + (mean * y) ** 2)
        if generator.random() > mean / (mean + x):
            x = mean * mean / x
        if x <= _LIMIT:
            return x


@_native
def _polya_gamma(tilt, generator):
    """Draw from PG(1, tilt), exactly."""
    z = min(0.5 * abs(tilt), _LARGEST)
    rate = math.pi**2 / 8 + 0.5 * z * z
    above = math.pi / (2 * rate) * math.exp(-rate * _LIMIT)
    root = math.sqrt(_LIMIT)
    below = 2 * math.exp(-z) * _normal_cdf((_LIMIT * z - 1) / root)
    below += 2 * math.exp(z) * _normal_cdf(-(_LIMIT * z + 1) / root)
    while True:
        if generator.random() * (above + below) < above:
            x = _LIMIT + generator.standard_exponential() / rate
        else:
            x = _truncated_inverse_gaussian(z, generator)
        total = _term(0, x)
        y = generator.random() * total
        n = 0
        while True:
            n += 1
            if n % 2 == 1:
                total -= _term(n, x)
                if y <= total:
                    return 0.25 * x
            else:
                total += _term(n, x)
                if y > total:
                    break


@_native
def _polya_gamma_by_series(shape, tilt, generator):
    """Draw from PG(shape, tilt) by the first gamma variables of its series (equation 1 there).

    One more variable has the mean and the variance of all others; the third cumulant is accurate to
    1e-5.
    """
    z = min(max(abs(tilt), _LEAST_TILT), 2 * _LARGEST)
    mean = math.tanh(0.5 * z) / (2 * z)
    variance = (math.sinh(z) - z) / (2 * z**3 * (1 + math.cosh(z)))
    total = 0.0
    for k in range(_TERMS + int(z)):
        term = 0.5 / (math.pi**2 * (k + 0.5) ** 2 + 0.25 * z * z)
        total += term * generator.standard_gamma(shape)
        mean -= term
        variance -= term * term
    total += variance / mean * generator.standard_gamma(shape * mean * mean / variance)
    return max(total, _LEAST_DRAWN * shape)


@_native
def draw_polya_gamma(tilt, shape, generator, drawn):
    """Draw Polya-gamma variables PG(shape, tilt).

    Parameters
    ----------
    tilt, shape
        float64 [n].
    generator
        numpy.random.Generator.
    drawn
        float64 [n]; output.
    """
    for i in range(len(tilt)):
        if shape[i] <= _MOST_SUMMED and shape[i] == math.floor(shape[i]):
            drawn[i] = 0.0
            for _ in range(int(shape[i])):
                drawn[i] += _polya_gamma(tilt[i], generator)
        else:
            drawn[i] = _polya_gamma_by_series(shape[i], tilt[i], generator)


@_native
def _positive_normal(mean, generator):
    """Draw from the normal distribution of a mean and variance 1, above 0 (Robert 1995)."""
    if mean >= 0:
        while True:
            x = mean + generator.standard_normal()
            if x > 0:
                return x
    rate = 0.5 * (math.sqrt(mean * mean + 4) - mean)
    while True:
        x = generator.standard_exponential() / rate
        if generator.random() <= math.exp(-0.5 * (x - mean - rate) ** 2):
            return x


@_native
def draw_truncated(mean, is_positive, times, generator, drawn):
    """Draw means of normal variables of variance 1 with known signs.

    Parameters
    ----------
    mean
        float64 [n].
    is_positive
        bool [n].
    times
        float64 [n], whole; the number of variables.
    generator
        numpy.random.Generator.
    drawn
        float64 [n]; output.
    """
    for i in range(len(mean)):
        sign = 1.0 if is_positive[i] else -1.0
        total = 0.0
        for _ in range(int(times[i])):
            total += _positive_normal(sign * mean[i], generator)
        drawn[i] = sign * total / times[i]
