"""A burst of samples → dominant line, strength, peak to peak. Pure, numpy.

Shapes are in names: T samples in time, X axes, F lines of a spectrum.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STANDARD_GRAVITY: Final = 9.80665
"""m/s² in one g."""
LEAST_SAMPLES: Final = 16
_NOTHING_G: Final = 1e-9
"""What rounding leaves of a constant; no accelerometer is that quiet."""
_LEAK_LINES: Final = 3
"""Lines at the bottom of a Hann-windowed spectrum that hold what the mean left behind."""


@dataclass(frozen=True, slots=True)
class Vibration:
    """``hertz`` of the strongest line (None where nothing moves), ``g`` RMS over all axes."""

    hertz: float | None
    g: float


def spectrum(samples_T: Floats, sampling_hertz: float) -> tuple[Floats, Floats]:
    """(frequencies in Hz, amplitudes in the samples' unit), Hann-windowed, without the mean.

    The amplitudes are scaled so that ``strength`` of them is the RMS of the samples: a sine of
    amplitude A has lines whose squares add up to A².
    """
    n = len(samples_T)
    window_T = np.hanning(n + 2)[1:-1]
    # The window's own mean: with the plain one gravity would leak into the lowest lines.
    centred_T = samples_T - np.average(samples_T, weights=window_T)
    transform_F = np.fft.rfft(centred_T * window_T)
    scale = 2.0 / float(np.sqrt(n * np.sum(np.square(window_T))))
    amplitude_F: Floats = np.abs(transform_F).astype(np.float64) * scale
    amplitude_F[0] /= np.sqrt(2.0)
    if n % 2 == 0:
        amplitude_F[-1] /= np.sqrt(2.0)
    hertz_F: Floats = np.fft.rfftfreq(n, 1.0 / sampling_hertz).astype(np.float64)
    return hertz_F, amplitude_F


def strength(amplitude_F: Floats) -> float:
    """RMS of what the spectrum describes."""
    return float(np.sqrt(np.sum(np.square(amplitude_F)) / 2.0))


def dominant_hertz(hertz_F: Floats, amplitude_F: Floats, above_hertz: float = 0.0) -> float | None:
    """Frequency of the strongest line above ``above_hertz``; None where all are zero.

    Between two lines it is interpolated (parabola through the logarithms), good to a tenth of a
    line for a clean tone.
    """
    usable_F = np.where(hertz_F > above_hertz, amplitude_F, 0.0)
    peak = int(np.argmax(usable_F))
    if usable_F[peak] <= 0:
        return None
    if not 0 < peak < len(hertz_F) - 1:
        return float(hertz_F[peak])
    low, top, high = (float(usable_F[i]) for i in (peak - 1, peak, peak + 1))
    tiny = top * 1e-9
    a, b, c = np.log(max(low, tiny)), np.log(top), np.log(max(high, tiny))
    curvature = a - 2.0 * b + c
    shift = 0.0 if curvature >= 0 else float(np.clip(0.5 * (a - c) / curvature, -0.5, 0.5))
    step = float(hertz_F[1] - hertz_F[0])
    return float(hertz_F[peak]) + shift * step


def vibration(metres_per_second2_TX: Floats, sampling_hertz: float | None) -> Vibration | None:
    """What an accelerometer's burst says of a bearing; gravity, being constant, is removed.

    None for a burst too short to say anything. Without a sampling rate there is a strength and no
    line.
    """
    n = len(metres_per_second2_TX)
    if n < LEAST_SAMPLES or not np.isfinite(metres_per_second2_TX).all():
        return None
    rate = sampling_hertz or 1.0
    power_F: Floats | None = None
    hertz_F: Floats = np.zeros(0)
    for samples_T in metres_per_second2_TX.T:
        hertz_F, amplitude_F = spectrum(samples_T / STANDARD_GRAVITY, rate)
        power_F = np.square(amplitude_F) if power_F is None else power_F + np.square(amplitude_F)
    assert power_F is not None
    amplitude_F = np.sqrt(power_F)
    g = strength(amplitude_F)
    if g < _NOTHING_G:
        return Vibration(None, 0.0)
    if not sampling_hertz:
        return Vibration(None, g)
    lowest = _LEAK_LINES * sampling_hertz / n
    return Vibration(dominant_hertz(hertz_F, amplitude_F, lowest), g)


def peak_to_peak(samples_T: Floats) -> float | None:
    """Highest minus lowest sample; None for a burst too short, or with a gap in it."""
    if len(samples_T) < LEAST_SAMPLES or not np.isfinite(samples_T).all():
        return None
    # Without the mean first: a ripple of millivolts keeps its digits beside a rail of 12 V.
    centred_T = samples_T - np.mean(samples_T)
    return float(np.max(centred_T) - np.min(centred_T))
