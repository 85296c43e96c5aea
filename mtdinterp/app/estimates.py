"""The table of estimators: how far each registered one is from the truth on the sequence in view.

Constants are fitted to the model's predictions, once per model and length. That takes seconds, so
the page asks for the table separately, and it is computed outside the lock of the other requests.
"""

import threading
from dataclasses import dataclass

from mtdinterp.app.cache import Recent
from mtdinterp.app.models import Fitted, Reading, fitted_to
from mtdinterp.app.scene import Scene
from mtdinterp.app.views import BARS, View
from mtdinterp.errors import CannotCompute
from mtdinterp.estimators import Estimator
from mtdinterp.estimators.base import accuracy_notes
from mtdinterp.metrics import divergences
from mtdinterp.registry import ESTIMATORS


@dataclass(frozen=True)
class Row:
    """One estimator on the sequence in view."""

    name: str
    label: str
    constants: str
    """The constants with their symbols, and how they were chosen; empty if there are none."""
    kl: float | None
    """KL(judge ‖ prediction); None if it cannot be computed."""
    reason: str = ""
    """Why it cannot be computed, in one sentence."""
    note: str = ""
    """How accurate the weights are, if they are not computed exactly."""


class EstimatorTable:
    """The rows of every registered estimator; fits are kept per model, length and estimator."""

    def __init__(self) -> None:
        self._fits: Recent[Fitted | str] = Recent(256)
        self._lock = threading.Lock()

    def rows(self, scene: Scene, found: View) -> list[Row]:
        """One row per estimator, in the order of the registry.

        Args:
            scene: the model, sequences and edits that are shown.
            found: its view, which says what predictions are compared with.

        Returns:
            The rows.
        """
        with self._lock:
            return [self._row(estimator, scene, found) for estimator in ESTIMATORS.values()]

    def _row(self, estimator: Estimator, scene: Scene, found: View) -> Row:
        label = estimator.label
        fitted = self._fitted(estimator, scene)
        if isinstance(fitted, str):
            return Row(estimator.name, label, "", None, fitted)
        constants = _describe(estimator, scene, fitted)
        try:
            prediction = estimator.predict(scene.evidence, **fitted.constants)
        except CannotCompute as error:
            return Row(estimator.name, label, constants, None, str(error))
        judge = prediction.new_tensor([found.predictions[found.judge]])
        kl = divergences(judge, prediction).item()
        note = accuracy_notes([estimator.name], scene.evidence).get(estimator.name, "")
        return Row(estimator.name, label, constants, kl, note=note)

    def _fitted(self, estimator: Estimator, scene: Scene) -> Fitted | str:
        """The estimator's constants, or why there are none."""
        if estimator.name in BARS:
            # The same constants as the bars, with the β of the slider.
            fitted = scene.reading.fits[estimator.name]
            shown = scene.bar_constants(estimator.name)
            return fitted if shown == fitted.constants else Fitted(shown)
        key = (scene.state.model.name, scene.length, estimator.name)
        return self._fits.get(key, lambda: _fit(estimator, scene.reading))


def _fit(estimator: Estimator, reading: Reading) -> Fitted | str:
    try:
        return fitted_to(estimator.name, reading.explanation)
    except CannotCompute as error:
        return str(error)


def _describe(estimator: Estimator, scene: Scene, fitted: Fitted) -> str:
    """The constants with their symbols, and where they come from if not from a proper fit."""
    parts = []
    for constant in estimator.constants_for(scene.evidence):
        value = fitted.constants[constant.name]
        bound = " (at the bound)" if constant.name in fitted.at_bound else ""
        parts.append(f"{constant.symbol} = {value:.3g}{bound}")
    explanation = scene.reading.explanation
    is_own = (
        fitted.constants == explanation.constants
    )  # otherwise fitted here, or set by the slider
    if is_own and estimator.name == explanation.algorithm.name and not explanation.fitted:
        parts.append(explanation.source)
    return ", ".join(parts)
