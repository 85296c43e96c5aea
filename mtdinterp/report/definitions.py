"""Every term of a report in a sentence, with the paper's own equation or statement where it has
one."""

DEFINITIONS = {
    "MTD task": "Each token is drawn from row π[y_{t-g}] of a fixed transition matrix; the lag g "
    "is random with "
    "weights λ that differ from sequence to sequence (eq. mtd_definition).",
    "q, m, T": "Number of tokens, number of lags, length of a sequence.",
    "γ, Γ": "The posterior of each lag at a position under uniform weights, and its average over "
    "positions m..T-1 "
    "(eq. gamma_calc at uniform weights).",
    "one step of mirror descent": "Weights softmax(β·Γ): one exponentiated-gradient step from "
    "uniform weights "
    "(eq. eg_update, eq. md_one_step_mtd). More steps repeat it from where it arrived.",
    "β, η": "The step in two units, β = η·m·(T-m). Its optimum minimises the KL to the truth for "
    "this task and length; "
    "first-order theory has η = 1/(αm+1), where one step agrees with the posterior mean to first "
    "order "
    "(theorem first_order_equivalence).",
    "construction": "Weights written down by hand that do one step of mirror descent in three "
    "layers "
    "(proposition transformer_implementation), or two in five.",
    "exact posterior mean": "E[λ | tokens] under the Dirichlet prior, by quadrature: the Bayes "
    "optimum "
    "(eq. bayes_optimal_predictor_main).",
    "KL to the truth": "Mean KL(true next-token distribution ‖ prediction) over held-out "
    "sequences; a model's outputs "
    "are clipped at 1e-6 and normalised. ± is a standard error over sequences.",
    "KL(model ‖ estimator)": "How far an estimator, with its constants fitted to the model on "
    "other sequences, is from "
    "the model's predictions.",
    "explained": "1 - KL(model ‖ estimator) / KL(model ‖ the token marginal): 0 is no better than "
    "knowing nothing of "
    "the sequence.",
    "gain, branch": "Slope of what layers 1 and 2 average on Γ. Direct if positive, mirrored if "
    "negative, undecided if "
    "it explains less than half of the variance.",
    "gauge": "Attention ignores a constant for every query token, so layer 1 shows π only up to "
    "one; that the token "
    "marginal is stationary fixes it. The paper's probe, a row softmax of W_Aᵀ, leaves it open.",
    "row KL": "Mean over rows a of KL(π[a] ‖ recovered[a]).",
    "total variation": "Half the sum of absolute differences: 0 for the same distribution, 1 for "
    "disjoint ones.",
    "R²": "1 - squared error / variance, on sequences that the fit did not see where there is a "
    "fit; below 0 is worse "
    "than the mean.",
    "L1.lag, L2.L1.lag, …": "Named blocks of the stream: what layer 1 writes of its lag code; what "
    "layer 2 copies of "
    "that block; and so on.",
    "two-step construction": "Five layers: w¹ = softmax(β₁·Γ), Γ² = Σ_i softmax_i(-a·w¹·γ_i)·γ_i, "
    "and the weights "
    "softmax(c₁·Γ + c₂·Γ²).",
    "maximum likelihood, entropy-regularised": "Weights that maximise ℓ(w), or ℓ(w) + s·H(w).",
    "plateau left, β appears, π appears": "Training sits at the KL of uniform weights first. It "
    "has left when half of "
    "the way to one-step mirror descent is done at two evaluations in a row; β "
    "and π appear when they can be read from then on.",
    "selectivity": "R² of a linear probe on held-out sequences minus the larger of its controls.",
    "patch sweep": "Every block at every position is taken from a clean run into a corrupted one "
    "that ends in the same "
    "tokens; the picture shows which share of the way back to the clean prediction each one goes.",
    "steering": "The last layer's attention at the last position is replaced by weights of one's "
    "own; the formula "
    "Σ_g w_g·π[y_{T-g}] says where the output must go.",
    "interchange": "A variable of the algorithm is taken from another sequence, in the model at a "
    "site and in the "
    "algorithm; R² says how alike both outputs move. 1 is exactly alike. Controls: a random site, "
    "another source, the site's mean.",
    "transplant": "One layer's attention is replaced by the construction's, and the KL to the "
    "truth measured again.",
    "circuit": "The fewest uses of stream blocks found that keep 95% of the predictions; all "
    "others carry their mean "
    "over sequences.",
}


def terms_page() -> str:
    """docs/terms.md: the same words for those who read no report."""
    lines = [f"- **{term}**: {meaning}" for term, meaning in DEFINITIONS.items()]
    about = "As in reports, with the names that the paper's source gives its equations."
    return "\n".join(["# Terms", "", about, "", *lines, ""])
