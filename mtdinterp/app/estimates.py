"""The table of estimators: how far each registered one is from the truth on the sequence in view.

Constants are fitted to the model's predictions, once per model and length. That takes seconds, so
the page asks for the table separately, and it is computed outside the lock of the other requests.
"""

import threading
from dataclasses import dataclass

from mtdinterp.app.cache import Recent
from mtdinterp.app.models import Reading, fitted_constants
from mtdinterp.app.scene import Scene
from mtdinterp.app.views import BARS, View
from mtdinterp.errors import CannotCompute
from mtdinterp.estimators import Estimator
from mtdinterp.estimators.base import Constants
from mtdinterp.metrics import divergences
from mtdinterp.registry import ESTIMATORS


@dataclass(frozen=True)
class Row:
    """One estimator on the sequence in view."""

    name: str
    label: str
    constants: str
    """The fitted constants with their symbols; empty if there are none."""
    kl: float | None
    """KL(judge ‖ prediction); None if it cannot be computed."""
    reason: str = ""
    """Why it cannot be computed, in one sentence."""


@dataclass(frozen=True)
class Fitted:
    """An estimator's constants for one model, or why there are none."""

    constants: Constants | None
    reason: str = ""


class EstimatorTable:
    """The rows of every registered estimator; fits are kept per model, length and estimator."""

    def __init__(self) -> None:
        self._fits: Recent[Fitted] = Recent(256)
        self._lock = threading.Lock()

    def rows(self, scene: Scene, found: View) -> list[Row]:
        """One row per estimator, in the order of the registry.

        Args:
            scene: what is shown.
            found: its view, which says what predictions are compared with.

        Returns:
            The rows.
        """
        with self._lock:
            return [self._row(estimator, scene, found) for estimator in ESTIMATORS.values()]

    def _row(self, estimator: Estimator, scene: Scene, found: View) -> Row:
        label = estimator.label
        fitted = self._fitted(estimator, scene)
        if fitted.constants is None:
            return Row(estimator.name, label, "", None, fitted.reason)
        symbols = _with_symbols(estimator, scene, fitted.constants)
        try:
            prediction = estimator.predict(scene.evidence, **fitted.constants)
        except CannotCompute as error:
            return Row(estimator.name, label, symbols, None, str(error))
        judge = prediction.new_tensor([found.predictions[found.judge]])
        return Row(estimator.name, label, symbols, divergences(judge, prediction).item())

    def _fitted(self, estimator: Estimator, scene: Scene) -> Fitted:
        if estimator.name in BARS:
            # The same constants as the bars, with the β of the slider.
            return Fitted(scene.bar_constants(estimator.name))
        key = (scene.state.model.name, scene.length, estimator.name)
        return self._fits.get(key, lambda: _fit(estimator, scene.reading))


def _fit(estimator: Estimator, reading: Reading) -> Fitted:
    try:
        return Fitted(fitted_constants(estimator.name, reading.explanation))
    except CannotCompute as error:
        return Fitted(None, str(error))


def _with_symbols(estimator: Estimator, scene: Scene, constants: Constants) -> str:
    symbols = {
        constant.name: constant.symbol for constant in estimator.constants_for(scene.evidence)
    }
    return ", ".join(f"{symbols[name]} = {value:.3g}" for name, value in constants.items())
