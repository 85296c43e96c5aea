"""Every threshold that decides a claim, with the reason for its value.

Numbers that only steer a computation (grid sizes, tolerances) stay with the computation. A
threshold below changes a verdict, so it is written once, here, and shown next to every claim that
it decides.
"""

# Slopes and branches ------------------------------------------------------------------------------

CLEAR_R2 = 0.5
"""Below this R², a slope is inconclusive. Trained models had at least 0.9, untrained models at
most 0.1."""
LEAST_GAIN = 0.02
"""A smaller gain of layer 1 is not a mechanism, however high its R². Untrained models had 0.01
with R² 0.7 on two tokens; the models of the zoo have at least 0.2."""
LEAST_TOKEN_GAIN = 0.1
"""A query token with a smaller gain belongs to no branch. Untrained models had at most 0.03."""
FALLS_R2 = 0.05
"""Share of the variance of a layer's log-attention that a slope over positions must explain. It is
small because scores that depend on the position alone make up most of the variance."""

# The transition matrix ----------------------------------------------------------------------------

RECOVERED = 0.5
"""A recovered π has at most this share of the total variation that the token marginal has.

Total variation, not KL: the row KL of an estimate with a clipped entry is decided by the floor of
the clipping (0.67 for a matrix that is 0.02 off in total variation)."""
ALIKE = 1e-6
"""Rows of π that differ from the token marginal by no more than this total variation are alike:
there is nothing to recover beyond the marginal."""
STOCHASTIC = 0.1
"""An estimate is usable if clipping it to distributions moves its rows by less than this total
variation."""
DEPENDS = 0.1
"""An estimate is usable if its rows differ from their mean by more than this total variation."""
AGREE = 0.1
"""Two readings of π agree if their rows are within this mean total variation."""
ROW_KL_FLOORS = (1e-9, 1e-3)
"""Row KLs are reported with entries clipped at each of these, to show the effect of the floor."""

# Which algorithm ----------------------------------------------------------------------------------

RESOLUTION = 1e-8
"""Mean divergences that differ by less than this are not distinguished: float32 predictions and the
fits are not more precise."""
IDENTIFIED_TO = 0.1
"""A combination of constants is identified if its standard error is below this share of the
constants' natural size."""
PRICE = 1.15
"""An estimator must be nearer by this factor for each constant beyond the first. Without it four
constants always win on a trained model, because they fit quirks of the model that one cannot."""
CLOSE = 1.05
"""Estimators within this factor of the nearest count as tied, however many the sequences."""
TELLABLE = 1.5
"""Estimators beyond this factor are never tied, however few the sequences: divergences have heavy
tails, and their standard errors say little."""
EXPLAINED = 0.5
"""An estimator that explains a smaller share of the predictions is not the model's algorithm."""
NAMED = 0.9
"""Share of how a model differs from uniform weights that an estimator must explain to be named."""
RESEMBLES = 0.6
"""The share that it must explain to be named with a caution."""
AS_UNIFORM = 0.95
"""Uniform weights are named only if they explain this share of how the model's predictions differ
from their mean. They explain most of how any mixture of rows differs from it."""

# The learning rate --------------------------------------------------------------------------------

EXACT_BETA = 2e-3
"""β is called exact within this share of the optimum, at every level."""
NEAR_OPTIMUM = 0.1
"""β counts as the optimum within this share of it. Standard errors do not widen this: they are
shown next to the distance."""
FLAT_SPAN = 3.0
"""An optimum is flat if its interval of one standard error spans more than this factor. From half
to one and a half times β is two standard errors from β = 0, where nothing is inferred. Random
tasks of 3 to 10 tokens had spans of 1.01 to 1.06 (5,000 sequences)."""
CLEAR_EDGE = 2.0
"""An optimum at an end of the searched range is clear if the values next to it are worse by this
many paired standard errors. Where nothing can be inferred, the slope at the end is pure noise, and
exceeds this in one case of twenty."""
FLAT_EDGE_SPAN = 10.0
"""An optimum at an end of the searched range is flat if values up to this factor away are not
clearly worse. A narrower range may lie beside the optimum, on a plateau: search a wider one."""
NOTHING_MOVES = 1e-8
"""Mean squared distance from the uniform-weights prediction below which β explains nothing."""

# Attention ----------------------------------------------------------------------------------------

NEAR = 0.1
"""Attention closer than this to the reference construction's is near it (total variation)."""
NEARER = 0.5
"""Attention is near only if its distance is below this share of uniform attention's: two averages
over many positions are always similar."""
FAR = 0.5
"""Attention farther than this from the reference construction's is far from it."""

FLAT_ATTENTION = 0.1
"""The effective attention is flat if no eighth of the positions but the last differs from their
mean by more than this share. In the three-layer models of the fast recipe layers 1 and 2 alone
differ by 0.26 to 1, and their product by at most 0.09, in all but one of them by at most 0.05."""

# Re-weighting -------------------------------------------------------------------------------------

REWEIGHTS = 0.02
"""A content score re-weights positions if its standard deviation over them is at least this many
nats. Untrained models had at most 0.002; the layers of trained five-layer models that re-weight had
at least 0.08."""
REWEIGHTS_R2 = 0.7
"""The share of a score in lag space that -a·(I - 11ᵀ/m) must explain. A random score of three lags
exceeds it in 8% of all cases, one of four lags in 0.3%; trained five-layer models had 0.72 to 1."""
AVERAGES = 0.5
"""A layer averages over positions if less than this share of its attention at the last query is on
the lags of the next token. Of twelve layers 3 and 4 of trained models, eleven had at most 0.17 and
one 0.56."""

# Latents ------------------------------------------------------------------------------------------

DECODED = 0.9
"""A quantity is decoded if a linear probe reads it with this R² beyond the controls."""

# Prediction and development -----------------------------------------------------------------------

NEAR_BAYES = 0.8
"""A model predicts nearly as well as possible if it closes this share of the gap between uniform
weights and the Bayes optimum, in KL to the truth."""
NO_GAP = 1e-6
"""A KL gap below this counts as no gap."""
APPEARED_KL = 0.5
"""π has appeared in layer 1 when its row KL is below this share of the token marginal's. Training
histories hold no total variation; layer 1's scores give positive entries, so no floor decides."""
LEFT_PLATEAU = 0.5
"""Training has left the plateau when the model closes this share of the KL gap between uniform
weights and one-step mirror descent."""
CLEARLY_WORSE = 1.1
"""Training has failed if the model's KL exceeds that of tuned one-step mirror descent by this
factor. The zoo's models of the recipes fast and grown have at most 1.05, and those of the paper's
recipe, on the wrong branch or still improving, at least 1.26."""

# Programs -----------------------------------------------------------------------------------------

DECOMPILED = 5e-5
"""A program reproduces its model closely if KL(model ‖ program) is at most this."""
DECOMPILED_SHARE = 0.1
"""It must also be at most this share of KL(model ‖ one-step mirror descent), itself small."""
SMALL_RISE = 0.01
"""A term is left out of the short program if the KL to the truth rises by less than this share of
the model's, even two standard errors up."""
OUTPUT_FLOOR = 1e-6
"""Outputs of models and programs are clipped here before they are compared: both may be slightly
negative where the truth is zero, and no KL should be decided by how negative."""

# Interventions ------------------------------------------------------------------------------------

USED_R2 = 0.9
"""R² of an interchange (or of steering) from which a site counts as the variable."""
BEYOND_CONTROLS = 0.2
"""The amount by which the R² of an interchange must exceed that of every control."""
SPARED = 0.1
"""A transplant may raise the KL by this share, or by two standard errors."""
FEW_EDGES = 0.1
"""The largest share of all edges that counts as a small circuit."""
CONSTANT_EDGE = 1e-10
"""Variance over sequences, relative to the square, below which an edge's contribution is
constant."""
