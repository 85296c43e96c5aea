"""Constants of the two-step construction: fitted to the truth, or to two-step mirror descent
itself.

The two targets give different constants. Against the truth the construction is an estimator of its
own, often a little better than two-step mirror descent, and its four constants are poorly
identified; against two-step mirror descent it shows how closely attention can follow that
algorithm.
"""

from mtdinterp.checks import check_count, check_option
from mtdinterp.estimators.mirror import mirror_descent
from mtdinterp.estimators.reweighted import TwoStepConstants
from mtdinterp.estimators.tuning import tune_learning_rate
from mtdinterp.fitting import Evidence, fit_two_step
from mtdinterp.task import MTDTask, predict_next

TARGETS = ("truth", "two_step")


def tune_two_step(
    task: MTDTask, length: int, target: str = "truth", seed: int = 0, n_sequences: int = 5000
) -> TwoStepConstants:
    """The four constants that minimise the mean KL(target ‖ construction), over sampled
    sequences."""
    check_option("target", target, TARGETS)
    data = task.sample(check_count("n_sequences", n_sequences), length, seed)
    # The same rate that anyone gets who tunes two-step mirror descent for this task and seed.
    two_step = tune_learning_rate(task, length, steps=2, seed=seed)
    if target == "truth":
        wanted = data.next_probs
    else:
        weights = mirror_descent(
            task.transition, data.tokens, task.order, two_step.learning_rate, steps=2
        )
        wanted = predict_next(task.transition, data.tokens, weights)
    return fit_two_step(Evidence(task, data.tokens), wanted, two_step.beta)
