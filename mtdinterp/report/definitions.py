"""Definitions of the terms that reports use, with the names of the paper's equations.

The report shows them as its last section; `docs/terms.md` is generated from them.
"""

DEFINITIONS = {
    "MTD task": (
        "Each token is drawn from row π[y_{t-g}] of a fixed transition matrix π, where the lag g "
        "is chosen at random with weights λ. Every sequence has its own λ (eq. mtd_definition)."
    ),
    "lag-specific task": (
        "The same process with one transition matrix per lag. It has no single π, so questions "
        "about π do not apply."
    ),
    "q, m, T": "The number of tokens, the number of lags, and the length of a sequence.",
    "γ, Γ": (
        "γ (responsibilities) is the posterior of each lag at a position under uniform weights. Γ "
        "is its mean over the positions with evidence, which are m..T-1 on an MTD task "
        "(eq. gamma_calc at uniform weights)."
    ),
    "estimator": (
        "A rule that turns a sequence into mixture weights, such as one step of mirror descent. "
        "Its prediction is Σ_g w_g·π[y_{T-g}]."
    ),
    "uniform weights": (
        "The estimator that infers nothing: every lag has weight 1/m. Training first stalls at "
        "its KL."
    ),
    "one step of mirror descent": (
        "The weights softmax(β·Γ), which are one exponentiated-gradient step from uniform weights "
        "(eq. eg_update, eq. md_one_step_mtd). Each further step starts from the previous weights."
    ),
    "β, η": (
        "The learning rate in two units, β = η·m·N, where N is the number of positions with "
        "evidence: T-m on an MTD task. The optimal β minimises the KL to the truth "
        "for the task and length."
    ),
    "first-order theory": (
        "At η = 1/(αm+1), one step and the posterior mean agree to first order "
        "(theorem first_order_equivalence); α is the concentration of the Dirichlet prior."
    ),
    "exact posterior mean": (
        "E[λ | tokens] under the Dirichlet prior, computed by quadrature, or by Gibbs sampling "
        "with a note that says so if that needs too many nodes. No prediction has a smaller "
        "expected KL to the truth (eq. bayes_optimal_predictor_main)."
    ),
    "maximum likelihood, entropy-regularised": (
        "The weights that maximise the log-likelihood ℓ(w), or ℓ(w) + s·H(w) with the entropy H."
    ),
    "construction": (
        "A transformer whose weights are written down by hand so that it computes an algorithm "
        "exactly: one step of mirror descent in three layers (proposition "
        "transformer_implementation), or two steps in five."
    ),
    "two-step construction": (
        "Five layers that compute w¹ = softmax(β₁·Γ), Γ² = Σ_i softmax_i(-a·w¹·γ_i)·γ_i, and the "
        "weights softmax(c₁·Γ + c₂·Γ²)."
    ),
    "reference construction": (
        "The construction that a model is compared with. It has the model's architecture and "
        "depth, and the constants that explain the model's predictions best."
    ),
    "claim": (
        "A statement that holds, fails, or is undecidable for a stated reason. Its row shows the "
        "threshold that decides, the control, the number of sequences and their seed."
    ),
    "control": "The result of the same measurement when there is nothing to find.",
    "at the bound": (
        "A fitted constant ended at the edge of the range that was searched, so the data do not "
        "determine it."
    ),
    "KL to the truth": (
        "Mean KL(true next-token distribution ‖ prediction) over held-out sequences, ± its "
        "standard error. Outputs of a model are clipped at 1e-6 and normalised first."
    ),
    "KL(model ‖ estimator)": (
        "The mean distance of the model's predictions from an estimator's, whose constants were "
        "fitted to the model on other sequences."
    ),
    "how predictions differ from those of uniform weights": (
        "The part of the predictions that uniform weights do not explain. An estimator explains "
        "1 - KL(model ‖ estimator) / KL(model ‖ uniform weights) of it (beyond_uniform in the "
        "JSON). This share decides whether an estimator other than uniform weights is named."
    ),
    "how predictions differ from their mean": (
        "An estimator explains 1 - KL(model ‖ estimator) / KL(model ‖ its own mean prediction) of "
        "it (explained in the JSON). One fixed distribution for all sequences explains nothing. "
        "Uniform weights are named by this share."
    ),
    "gain": (
        "The slope, on Γ, of what a head of layer 1 and a head of layer 2 average together: 1 in "
        "the construction."
    ),
    "branch": (
        "Direct if the gain is positive, mirrored if it is negative, undecided if its R² is below "
        "0.5. A mirrored model predicts well only if the last layer undoes the sign."
    ),
    "carrying head": (
        "With several heads per layer, the head whose gain (layer 1) or β (last layer) has the "
        "largest R². Numbers given for a layer are this head's."
    ),
    "gauge": (
        "Attention does not change if a constant is added to all scores of a query token, so layer "
        "1 shows π only up to such constants. The stationary token marginal fixes them; the "
        "paper's probe, a row softmax of W_Aᵀ, leaves them open."
    ),
    "total variation": (
        "Half the sum of absolute differences: 0 for equal distributions, 1 for disjoint ones. π "
        "counts as recovered if the mean over rows is less than half that of the token marginal."
    ),
    "row KL": (
        "Mean over rows a of KL(π[a] ‖ recovered[a]), with entries clipped at 1e-9 and again at "
        "1e-3. If the two values differ, the clipping decides the number."
    ),
    "R²": (
        "1 - squared error / variance; a value below 0 is worse than predicting the mean. Linear "
        "probes and interchanges are scored on held-out sequences."
    ),
    "L1.lag, L2.L1.lag, …": (
        "Named blocks of the stream. L1.lag is the lag code that layer 1 writes, L2.L1.lag is "
        "layer 2's copy of that block, and so on."
    ),
    "lag mass, effective attention": (
        "The lag mass of a position is layer 1's attention on its lags. Times the weight that "
        "layer 2 gives to the position, it is the position's effective attention: how much it "
        "counts for the last layer. Deeper models have one such product for every path."
    ),
    "lag space": (
        "What a stream block with a lag code holds, written as one number per lag. Scores between "
        "two such blocks are matrices over lags."
    ),
    "re-weighting": (
        "A layer averages γ again, with weights that fall with how well an average explains a "
        "position: its content score is -a·(I - 11ᵀ/m) in lag space."
    ),
    "selectivity": "Held-out R² of a linear probe minus the largest R² of its controls.",
    "plateau left, β appears, π appears": (
        "Training first stalls at the KL of uniform weights. It has left this plateau once two "
        "evaluations in a row are closer to one-step mirror descent; β and π appear at the step "
        "from which they can be read until the end."
    ),
    "patch sweep": (
        "Each block at each position is copied from a clean run into a corrupted run that ends in "
        "the same tokens. The map shows how much of the clean prediction each copy restores."
    ),
    "steering": (
        "The last layer's attention at the last position is replaced by given weights w. The "
        "output is compared with the formula Σ_g w_g·π[y_{T-g}]."
    ),
    "interchange": (
        "A variable is replaced by its value on another sequence, in the algorithm and at a site "
        "of the model. R² is 1 if both predictions move in the same way; the controls are a random "
        "site, another source and the site's mean."
    ),
    "transplant": (
        "A layer's attention is replaced by the reference construction's, and the KL to the truth "
        "is measured again."
    ),
    "circuit": (
        "The smallest set of edges (uses of a stream block) that was found to remove 95% of the KL "
        "between the model and the model with every edge at its mean over sequences."
    ),
}


CODE = {
    "MTD task": "mtdinterp.tasks.mtd.MTDTask",
    "lag-specific task": "mtdinterp.tasks.lag_specific.LagSpecificMTDTask",
    "q, m, T": "mtdinterp.tasks.base.Task",
    "γ, Γ": "mtdinterp.evidence.Evidence.mean_responsibilities",
    "estimator": "mtdinterp.estimators.base.Estimator",
    "uniform weights": "mtdinterp.estimators.uniform.Uniform",
    "one step of mirror descent": "mtdinterp.estimators.mirror_descent.descend",
    "β, η": "mtdinterp.estimators.mirror_descent.beta_from_learning_rate",
    "first-order theory": "mtdinterp.theory.equivalent_learning_rate",
    "exact posterior mean": "mtdinterp.estimators.exact_bayes.posterior_mean_of",
    "maximum likelihood, entropy-regularised": "mtdinterp.estimators.entropic.maximise_regularised",
    "construction": "mtdinterp.construction.base.Implementation",
    "two-step construction": "mtdinterp.construction.two_step_disentangled.two_step",
    "reference construction": "mtdinterp.explanation.Explanation.reference",
    "claim": "mtdinterp.claims.Claim",
    "control": "mtdinterp.claims.Claim",
    "at the bound": "mtdinterp.estimators.base.Fit",
    "KL to the truth": "mtdinterp.metrics.score",
    "KL(model ‖ estimator)": "probes.identify_algorithm.identify_algorithm",
    "how predictions differ from those of uniform weights": "mtdinterp.metrics.share_explained",
    "how predictions differ from their mean": "mtdinterp.metrics.share_explained",
    "gain": "mtdinterp.readings.mechanism.head_paths",
    "branch": "mtdinterp.readings.mechanism.branch_of",
    "carrying head": "mtdinterp.readings.mechanism.strongest",
    "gauge": "mtdinterp.readings.mechanism.gauge_fixed",
    "total variation": "mtdinterp.metrics.total_variation",
    "row KL": "mtdinterp.metrics.row_kl",
    "R²": "mtdinterp.metrics.r_squared",
    "L1.lag, L2.L1.lag, …": "mtdinterp.models.stream.Stream",
    "lag mass, effective attention": "mtdinterp.readings.effective.weights_along",
    "lag space": "mtdinterp.readings.lag_blocks.LagBlock",
    "re-weighting": "probes.recover_reweighting.recover_reweighting",
    "selectivity": "probes.decode_latents.decode_latents",
    "plateau left, β appears, π appears": "probes.trace_development.trace_development",
    "patch sweep": "mtdinterp.interventions.sweep.patch_sweep",
    "steering": "mtdinterp.interventions.steering.steer_weights",
    "interchange": "mtdinterp.interventions.interchange.interchange",
    "transplant": "mtdinterp.interventions.transplants.transplant_attention",
    "circuit": "mtdinterp.interventions.circuit.minimal_circuit",
}
"""Where the code defines or computes each term, by its dotted name."""


def terms_page() -> str:
    """The definitions as the page docs/terms.md, each with a pointer to the code."""
    lines = [f"- **{term}**: {text} Code: `{CODE[term]}`." for term, text in DEFINITIONS.items()]
    about = (
        "The terms that reports use, and where the code defines them. Names in brackets are those "
        "of the paper's source."
    )
    return "\n".join(["# Terms", "", about, "", *lines, ""])
