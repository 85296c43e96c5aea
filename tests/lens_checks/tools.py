"""Checks of the tools and utilities on top of hooks."""

import io
from contextlib import redirect_stderr, redirect_stdout

import torch
from transformer_lens import evals, utilities
from transformer_lens.head_detector import detect_head
from transformer_lens.tools.analysis import (
    JacobianLens,
    SubspaceInterchange,
    collect_activations,
    fit_das,
    fit_sparse_probe,
    intervened_logits,
    logit_lens,
    logit_readout,
    neuron_basis,
    reinitialized,
)
from transformer_lens.tools.training import TrainConfig, train

from lens_checks.base import LENGTH, Section, Setting, each_raises, random_model, same
from mtdinterp.metrics import to_distribution

tools = Section("Other tools")


@tools.works("`logit_lens`, `logit_readout`")
def lens(at: Setting) -> None:
    found = logit_lens(at.model, at.tokens, positions=None)
    assert found.labels == ["0_pre", "1_pre", "final_post"]
    same(found.values[-1], at.model(at.tokens))
    _, cache = at.model.run_with_cache(at.tokens)
    same(logit_readout(at.model, cache["resid_pre", 1]).values, found.values[1])


@tools.refused(
    "`logit_lens` of a model with `d_mlp` > 0",
    ValueError,
    "The hidden layer makes outputs nonlinear in the stream; the tool refuses such a model only "
    "if the difference is large.",
)
def lens_of_hidden_layer(at: Setting) -> None:
    logit_lens(random_model(at.architecture, d_mlp=5), at.tokens)


@tools.works(
    "`detect_head`",
    "Use a pattern of offsets of your own; induction heads are not what this task needs.",
)
def head_detector(at: Setting) -> None:
    sequence = at.model.to_string(at.tokens[0])
    wanted = torch.ones(LENGTH, LENGTH).tril(-1).triu(-2)
    scores = detect_head(at.model, sequence, wanted)
    _, cache = at.model.run_with_cache(at.tokens[:1])
    inside = (cache["pattern", 1][0] * wanted).sum((1, 2)) / LENGTH
    same(scores[1], inside)


@tools.works("interchange: `collect_activations`, `SubspaceInterchange`, `intervened_logits`")
def interchange(at: Setting) -> None:
    last = torch.full((3,), LENGTH - 1)
    name = "blocks.1.hook_resid_pre"

    def task(tokens: torch.Tensor) -> torch.Tensor:
        return at.model(tokens)[:, -1]

    held = collect_activations(at.model, name, at.tokens, task, positions=last)
    everything = neuron_basis(at.model.cfg.d_model, range(at.model.cfg.d_model))
    swap = SubspaceInterchange(everything.double())
    found = intervened_logits(at.model, name, swap, at.other, held, task, positions=last)
    expected = at.model.run_with_hooks(at.other, fwd_hooks=[(name, at_last(held))])[:, -1]
    same(found, expected)


def at_last(values: torch.Tensor):
    def hook(value: torch.Tensor, hook: object) -> torch.Tensor:
        changed = value.clone()
        changed[:, -1] = values
        return changed

    return hook


@tools.works(
    "`fit_das`",
    "It minimises the cross-entropy of a softmax, so let the task function return logarithms of "
    "probabilities.",
)
def alignment_search(at: Setting) -> None:
    model, base = at.construction, at.prompts
    source = base.flip(0)
    last = torch.full((len(base),), LENGTH - 1)

    def task(tokens: torch.Tensor) -> torch.Tensor:
        return model.to_probabilities(model(tokens)[:, -1]).clamp_min(1e-9).log()

    result = fit_das(
        model,
        "blocks.2.hook_resid_pre",
        base,
        source,
        task(source).argmax(-1),
        task,
        rank=1,
        base_positions=last,
        source_positions=last,
        epochs=5,
        lr=0.05,
    )
    same(result.basis.norm(), torch.tensor(1.0))
    assert result.losses[-1] < result.losses[0]


@tools.works("`fit_sparse_probe`")
def sparse_probe(at: Setting) -> None:
    prompts = at.task.sample(40, LENGTH, seed=2).tokens
    _, cache = at.construction.run_with_cache(prompts)
    column = at.construction.stream["token"].start + 1
    result = fit_sparse_probe(cache["resid_pre", 1][:, -1], (prompts[:, -1] == 1).long(), k=1)
    assert result.selected_features.tolist() == [column]


@tools.works("`tools.training.train`", 'It minimises `return_type="loss"`; see above.')
def training(at: Setting) -> None:
    before = at.model(at.tokens, return_type="loss").item()
    config = TrainConfig(num_epochs=5, batch_size=3, lr=0.02, device="cpu", print_every=None)
    with redirect_stderr(io.StringIO()):
        train(at.model, config, [{"tokens": row} for row in at.tokens])
    assert at.model(at.tokens, return_type="loss").item() < before


@tools.works("`reinitialized`")
def control(at: Setting) -> None:
    other = reinitialized(at.model, seed=1)
    assert other.config == at.model.config
    assert not torch.equal(other.W_U, at.model.W_U)


@tools.refused(
    "`JacobianLens`",
    TypeError,
    "It accepts TransformerLens' own `TransformerBridge` around a Hugging Face model only.",
)
def jacobian_lens(at: Setting) -> None:
    JacobianLens.fit(at.model, ["0 1 2 3"], corpus="digits")


@tools.refused(
    "`evals.sanity_check`, `evals.induction_loss`",
    ValueError,
    "They feed English text or thousands of different tokens to the model.",
)
def language_evals(at: Setting) -> None:
    calls = [
        lambda: evals.sanity_check(at.model),
        lambda: evals.induction_loss(at.model, subseq_len=5, device="cpu"),
    ]
    each_raises(ValueError, calls)


@tools.works("`evals.evaluate_on_dataset`", 'It averages `return_type="loss"`; see above.')
def dataset_eval(at: Setting) -> None:
    with redirect_stderr(io.StringIO()):
        found = evals.evaluate_on_dataset(at.model, [{"tokens": at.tokens}], device="cpu")
    same(torch.tensor(found), at.model(at.tokens, return_type="loss"))


@tools.works("`utilities.lm_accuracy`")
def accuracy(at: Setting) -> None:
    outputs = at.model(at.tokens)
    right = outputs.argmax(-1)[:, :-1] == at.tokens[:, 1:]
    same(utilities.lm_accuracy(outputs, at.tokens), right.double().mean())


@tools.refused(
    "`utilities.lm_cross_entropy_loss`, `logits_to_df`, `sample_logits` on a model's outputs",
    AssertionError,
    "They take a softmax of the outputs, which are probabilities already unless `config.logits`.",
)
def softmax_of_probabilities(at: Setting) -> None:
    outputs = at.construction(at.prompts).detach()[:, -2:]
    predicted = outputs[0, -1]

    def loss() -> None:
        found = utilities.lm_cross_entropy_loss(outputs, at.prompts[:, -2:])
        chosen = outputs[:, 0].gather(-1, at.prompts[:, -1:])
        same(found, -chosen.log().mean())

    def table() -> None:
        found = utilities.logits_to_df(predicted)["probability"].max()
        same(torch.tensor(found), predicted.max())

    def draws() -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            drawn = utilities.sample_logits(predicted.expand(4000, -1))
        frequency = (drawn == predicted.argmax()).double().mean()
        assert (frequency - predicted.max()).abs() < 0.04

    each_raises(AssertionError, [loss, table, draws])


@tools.works("the same utilities on `to_distribution(model.to_probabilities(outputs)).log()`")
def softmax_of_logarithms(at: Setting) -> None:
    outputs = at.construction(at.prompts).detach()[:, -2:]
    distribution = to_distribution(at.construction.to_probabilities(outputs))
    logits = distribution.log()
    tokens = at.prompts[:, -2:]
    chosen = distribution[:, 0].gather(-1, tokens[:, 1:])
    same(utilities.lm_cross_entropy_loss(logits, tokens), -chosen.log().mean())
    best = utilities.logits_to_df(logits[0, -1])["probability"].max()
    same(torch.tensor(best), distribution[0, -1].max())
    drawn = utilities.sample_logits(logits[:, -1], temperature=0.0)
    assert torch.equal(drawn, outputs[:, -1].argmax(-1))


@tools.works(
    "`utilities.test_prompt`",
    "Pass `top_k` of at most the vocabulary's size; ranks are right, but its probabilities are a "
    "softmax of the outputs, and so right with `config.logits` only.",
)
def prompt(at: Setting) -> None:
    text = at.model.to_string(at.tokens[0, :6])
    answer = at.model(at.tokens[:1, :6], last_only=True)[0].argmax().item()
    printed = io.StringIO()
    with redirect_stdout(printed):
        utilities.test_prompt(text, str(answer), at.model, top_k=4)
    assert "Rank: 0 " in printed.getvalue()
