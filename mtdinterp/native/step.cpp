// A whole training step, or a whole forward pass: one sequence after the other, each while it is in the cache.
//
// Every layer has the form
//   score[i, j] = h_i M h_j + h_i . keys[i - j],  A = causal softmax,
//   content_i = sum_j A[i, j] h_j,  position_i = sum_j A[i, j] values[i - j]   (for each head)
// and either appends content and position of every head to the stream, or adds them to it:
//   h <- h skip + sum over heads of content mix + position.
// The first stream is the one-hot tokens. Outputs and loss are those of the last `queries` positions.

#include <deque>

#include "attention_core.h"
#include "failure.h"

extern "C" {

struct StepLayer {
    int32_t heads, d_in, d_rel, d_out;
    const float *M, *keys, *values;                // [head, d_in, d_in], [head, length, d_in], [head, length, d_rel]
    const float *mix, *skip;                       // [head, d_in, d_out], [d_in, d_out]; null where the layer appends
    float *d_M, *d_keys, *d_values, *d_mix, *d_skip;
};

struct Step {
    int32_t batch, keys, queries, length, layers, vocab, cross_entropy, backward, keep, threads;
    const int64_t* tokens;                         // [batch, keys]
    const float* targets;                          // [batch, queries, vocab]; null: outputs alone are wanted
    float* outputs;                                // [batch, queries, vocab]; null: the loss alone is wanted
    const StepLayer* layer;
    const float* W_U;                              // [d_out of the last layer, vocab]
    float *d_W_U, *loss;
};
}

namespace {

// What all threads read of a layer, and where its gradients stand in a thread's sums.
struct PackedLayer {
    StepLayer info;
    std::vector<Table> keys, values;
    std::vector<Matrix> M, mix;
    Matrix skip;
    int64_t at_M, at_keys, at_values, at_mix, at_skip;

    PackedLayer(const StepLayer& layer, int length, int n_keys, int64_t& end) : info(layer) {
        const int heads = layer.heads, d_in = layer.d_in;
        keys = pack_tables(layer.keys, heads, length, n_keys, d_in);
        values = pack_tables(layer.values, heads, length, n_keys, layer.d_rel);
        M = pack_matrices(layer.M, heads, d_in, d_in);
        mix = pack_matrices(layer.mix, layer.mix ? heads : 0, d_in, layer.d_out);
        if (layer.skip) skip.pack(layer.skip, d_in, layer.d_out);
        const auto take = [&end](int64_t size) { const int64_t at = end; end += size + MARGIN; return at; };
        at_M = take(int64_t(heads) * d_in * padded(d_in));
        at_keys = take(int64_t(heads) * n_keys * padded(d_in));
        at_values = take(int64_t(heads) * n_keys * padded(layer.d_rel));
        at_mix = take(layer.mix ? int64_t(heads) * d_in * padded(layer.d_out) : 0);
        at_skip = take(layer.skip ? int64_t(d_in) * padded(layer.d_out) : 0);
    }
};

// One layer of one sequence: its input stream, and what the backward pass wants again.
struct Run {
    const PackedLayer& layer;
    const Shape s;
    const int d_in8, d_out8;
    Buffer memory[11];
    float *rows, *features, *q, *kept, *stats, *content, *grad, *grad_v, *grad_r, *through, *narrow;
    Forward forward;
    Backward backward;

    // With `keep` the attention stays in memory for the backward pass, which recomputes it otherwise.
    Run(const PackedLayer& layer, int queries, int keys, bool keep)
        : layer(layer), s(queries, keys, layer.info.d_in, layer.info.d_in, layer.info.d_in, layer.info.d_rel),
          d_in8(s.d_key8), d_out8(padded(layer.info.d_out)), forward(s), backward(s) {
        const int64_t heads = layer.info.heads;
        rows = memory[0].make(int64_t(keys) * d_in8);
        features = memory[1].make(int64_t(s.d_key) * s.feature_stride);
        q = memory[2].make(heads * queries * d_in8);
        kept = keep ? memory[3].make(heads * (int64_t(queries) * s.tile_stride + MARGIN)) : nullptr;
        stats = memory[4].make(heads * queries * 2);
        content = memory[5].make(layer.mix.empty() ? 0 : heads * queries * d_in8);
        grad = memory[6].make(int64_t(keys) * d_in8);
        grad_v = memory[7].make(int64_t(queries) * s.d_value8);
        grad_r = memory[8].make(int64_t(queries) * s.d_rel8);
        through = memory[9].make(int64_t(queries) * d_in8);
        narrow = memory[10].make(int64_t(queries) * d_out8);
    }

    const float* query_rows() const { return rows + int64_t(s.keys - s.queries) * d_in8; }
    float* kept_of(int h) const { return kept ? kept + h * (int64_t(s.queries) * s.tile_stride + MARGIN) : nullptr; }
    float* q_of(int h) const { return q + int64_t(h) * s.queries * d_in8; }
    float* content_of(int h) const { return content + int64_t(h) * s.queries * d_in8; }
    float* stats_of(int h) const { return stats + int64_t(h) * s.queries * 2; }
    Packed packed(int h) const { return {q_of(h), query_rows(), rows, rows, features, features}; }

    // From `rows` to `out`, the stream after the layer at the queries' positions, rows of `stride`.
    void run(float* out, int stride) {
        const int d_in = s.d_key, d_rel = s.d_rel, queries = s.queries;
        pack_features(features, s.feature_stride, rows, d_in8, s.keys, d_in);
        const bool adds = !layer.mix.empty();
        if (!adds) unpack_rows(out, stride, query_rows(), d_in8, queries, d_in);
        else if (layer.info.skip) multiply(out, stride, query_rows(), d_in8, queries, layer.skip.data, d_out8, d_in);
        else std::memcpy(out, query_rows(), int64_t(queries) * stride * sizeof(float));
        for (int h = 0; h < layer.info.heads; ++h) {
            multiply(q_of(h), d_in8, query_rows(), d_in8, queries, layer.M[h].data, d_in8, d_in);
            if (adds) {
                forward.run(packed(h), layer.keys[h], layer.values[h], stats_of(h), content_of(h), d_in8, narrow, d_out8, kept_of(h));
                add(out, narrow, int64_t(queries) * stride);
                multiply(narrow, d_out8, content_of(h), d_in8, queries, layer.mix[h].data, d_out8, d_in);
                add(out, narrow, int64_t(queries) * stride);
            } else {
                float* head = out + d_in + h * (d_in + d_rel);
                forward.run(packed(h), layer.keys[h], layer.values[h], stats_of(h), head, stride, head + d_in, stride, kept_of(h));
            }
        }
    }

    // From the gradient of the layer's output to the sums of its parameters, and to `grad`, that of its input, which
    // the first layer does not need: tokens are data.
    void back(const float* d_out, int stride, float* sums, bool first) {
        const int d_in = s.d_key, d_rel = s.d_rel, queries = s.queries;
        const bool adds = !layer.mix.empty();
        float* at_queries = grad + int64_t(s.keys - queries) * d_in8;
        if (layer.info.skip) scatter(sums + layer.at_skip, d_out8, query_rows(), d_in8, queries, 0, d_in, d_out, stride, d_out8);
        if (!first) {
            std::memset(grad, 0, int64_t(s.keys) * d_in8 * sizeof(float));
            if (layer.info.skip) multiply(at_queries, d_in8, d_out, stride, queries, layer.skip.transposed, d_in8, layer.info.d_out);
            else pack_rows(at_queries, d_in8, d_out, stride, queries, d_in);
        }
        for (int h = 0; h < layer.info.heads; ++h) {
            if (adds) {
                scatter(sums + layer.at_mix + int64_t(h) * d_in * d_out8, d_out8, content_of(h), d_in8, queries, 0, d_in, d_out,
                        stride, d_out8);
                multiply(grad_v, d_in8, d_out, stride, queries, layer.mix[h].transposed, d_in8, layer.info.d_out);
                std::memcpy(grad_r, d_out, int64_t(queries) * stride * sizeof(float));
            } else {
                const float* head = d_out + d_in + h * (d_in + d_rel);
                pack_rows(grad_v, s.d_value8, head, stride, queries, d_in);
                pack_rows(grad_r, s.d_rel8, head + d_in, stride, queries, d_rel);
            }
            backward.run(packed(h), layer.keys[h], layer.values[h], stats_of(h), grad_v, grad_r, grad, grad,
                         sums + layer.at_keys + int64_t(h) * s.keys * d_in8,
                         sums + layer.at_values + int64_t(h) * s.keys * s.d_rel8, !first, kept_of(h));
            scatter(sums + layer.at_M + int64_t(h) * d_in * d_in8, d_in8, query_rows(), d_in8, queries, 0, d_in, backward.dq,
                    d_in8, d_in8);
            if (first) continue;
            multiply(through, d_in8, backward.dq, d_in8, queries, layer.M[h].transposed, d_in8, d_in);
            add(at_queries, through, int64_t(queries) * d_in8);
            add(at_queries, backward.dp, int64_t(queries) * d_in8);
        }
    }
};

// Turns outputs [vocab] into the gradient of their loss, and gives the loss.
double loss_and_slope(float* y, const float* target, int vocab, bool cross_entropy) {
    double loss = 0;
    if (!cross_entropy) {
        for (int d = 0; d < vocab; ++d) {
            const float error = y[d] - target[d];
            loss += double(error) * error / vocab;
            y[d] = 2 * error / vocab;
        }
        return loss;
    }
    float best = y[0], mass = 0;
    for (int d = 1; d < vocab; ++d) best = y[d] > best ? y[d] : best;
    double total = 0;
    for (int d = 0; d < vocab; ++d) total += std::exp(double(y[d]) - best), mass += target[d];
    const double log_total = std::log(total) + best;
    for (int d = 0; d < vocab; ++d) {
        loss += target[d] * (log_total - y[d]);
        y[d] = float(mass * std::exp(y[d] - log_total)) - target[d];
    }
    return loss;
}

double run_share(const Step& step, const std::vector<PackedLayer>& layers, const Matrix& W_U, int64_t at_W_U, float* sums,
                 int thread) {
    const Share share(step.batch, thread, step.threads);
    if (share.begin == share.end) return 0;
    std::deque<Run> runs;  // which never moves its elements: they hold references to their own parts
    for (size_t l = 0; l < layers.size(); ++l)
        runs.emplace_back(layers[l], l + 1 < layers.size() ? step.keys : step.queries, step.keys, step.keep);
    Run& last = runs.back();
    Buffer memory[3];
    const int d8 = last.d_out8, vocab8 = W_U.stride;
    float* stream = memory[0].make(int64_t(step.queries) * d8);
    float* d_stream = memory[1].make(int64_t(step.queries) * d8);
    float* outputs = memory[2].make(int64_t(step.queries) * vocab8);
    const float scale = 1.0f / (float(step.batch) * step.queries);
    double loss = 0;
    for (int64_t b = share.begin; b < share.end; ++b) {
        Run& first = runs[0];
        std::memset(first.rows, 0, int64_t(step.keys) * first.d_in8 * sizeof(float));
        for (int i = 0; i < step.keys; ++i) {
            const int64_t token = step.tokens[b * step.keys + i];
            if (token < 0 || token >= first.s.d_key) throw std::out_of_range("token");
            first.rows[i * first.d_in8 + token] = 1;
        }
        for (size_t l = 0; l + 1 < runs.size(); ++l) runs[l].run(runs[l + 1].rows, runs[l + 1].d_in8);
        last.run(stream, d8);
        multiply(outputs, vocab8, stream, d8, step.queries, W_U.data, vocab8, W_U.rows);
        if (step.outputs)
            unpack_rows(step.outputs + b * step.queries * step.vocab, step.vocab, outputs, vocab8, step.queries, step.vocab);
        if (!step.targets) continue;
        for (int i = 0; i < step.queries; ++i) {
            float* y = outputs + int64_t(i) * vocab8;
            loss += loss_and_slope(y, step.targets + (b * step.queries + i) * step.vocab, step.vocab, step.cross_entropy);
            for (int d = 0; d < vocab8; ++d) y[d] = d < step.vocab ? y[d] * scale : 0;
        }
        if (!step.backward) continue;
        scatter(sums + at_W_U, vocab8, stream, d8, step.queries, 0, W_U.rows, outputs, vocab8, vocab8);
        multiply(d_stream, d8, outputs, vocab8, step.queries, W_U.transposed, d8, step.vocab);
        last.back(d_stream, d8, sums, runs.size() == 1);
        for (int l = int(runs.size()) - 2; l >= 0; --l) runs[l].back(runs[l + 1].grad, runs[l + 1].d_in8, sums, l == 0);
    }
    return loss;
}

void run_step(const Step& step, Failures& failures) {
    int64_t end = 0;
    std::vector<PackedLayer> layers;
    layers.reserve(step.layers);
    for (int l = 0; l < step.layers; ++l) layers.emplace_back(step.layer[l], step.length, step.keys, end);
    Matrix W_U;
    W_U.pack(step.W_U, step.layer[step.layers - 1].d_out, step.vocab);
    const int64_t at_W_U = end;
    Sums sums(step.backward ? end + int64_t(W_U.rows) * W_U.stride : 0, step.threads);
    std::vector<double> losses(step.threads);
#pragma omp parallel for num_threads(step.threads) schedule(static, 1)
    for (int thread = 0; thread < step.threads; ++thread)
        failures.guard([&] { losses[thread] = run_share(step, layers, W_U, at_W_U, sums.of(thread), thread); });
    if (!step.targets) return;
    double loss = 0;
    for (const double part : losses) loss += part;
    *step.loss = float(loss / (double(step.batch) * step.queries));
    if (!step.backward) return;
    sums.into_matrix(step.d_W_U, at_W_U, W_U.rows, W_U.columns, step.threads);
    for (const PackedLayer& layer : layers) {
        const StepLayer& to = layer.info;
        sums.into_matrix(to.d_M, layer.at_M, to.heads * to.d_in, to.d_in, step.threads);
        sums.into_table(to.d_keys, layer.at_keys, to.heads, step.length, step.keys, to.d_in, step.threads);
        sums.into_table(to.d_values, layer.at_values, to.heads, step.length, step.keys, to.d_rel, step.threads);
        if (to.mix) sums.into_matrix(to.d_mix, layer.at_mix, to.heads * to.d_in, to.d_out, step.threads);
        if (to.skip) sums.into_matrix(to.d_skip, layer.at_skip, to.d_in, to.d_out, step.threads);
    }
}

}  // namespace

extern "C" int32_t transformer_step(const Step* given) {
    Failures failures;
    failures.guard([&] { run_step(*given, failures); });
    return failures.code;
}
