// A whole layer of the disentangled transformer, where queries, keys and values come from one stream and the
// output is appended to it.

#include "attention_core.h"

extern "C" {

// A layer of the disentangled transformer: stream [batch, keys, d_in] -> [batch, queries, d_in + heads (d_in + d_rel)].
struct Layer {
    int32_t batch, heads, queries, keys, length, d_in, d_rel, threads;
    const float *stream, *W_A, *R_A, *R_V;
    float* stats;
};

struct LayerGradients {
    const float* out;
    float *stream, *W_A, *R_A, *R_V;               // `stream` may be null: then it is not computed
};
}

namespace {

// The stream of one sequence, which is queries' positions, keys and values at once, and the queries of one head.
struct StreamOperands {
    const Shape& s;
    Buffer row_memory, feature_memory, q_memory;
    float *rows, *features, *q;

    explicit StreamOperands(const Shape& shape) : s(shape) {
        rows = row_memory.make(int64_t(s.keys) * s.d_key8);
        features = feature_memory.make(int64_t(s.d_key) * s.feature_stride);
        q = q_memory.make(int64_t(s.queries) * s.d_key8);
    }

    const float* query_rows() const { return rows + int64_t(s.keys - s.queries) * s.d_key8; }

    void pack(const float* stream) {
        pack_rows(rows, s.d_key8, stream, s.d_key, s.keys, s.d_key);
        pack_features(features, s.feature_stride, stream, s.d_key, s.keys, s.d_key);
    }

    // q = h W_A at the queries' positions.
    Packed project(const Matrix& W_A) {
        multiply(q, s.d_key8, query_rows(), s.d_key8, s.queries, W_A.data, W_A.stride, s.d_key);
        return {q, query_rows(), rows, rows, features, features};
    }
};

void layer_forward(const Layer& l, float* out, const std::vector<Matrix>& W_A, const std::vector<Table>& keys,
                   const std::vector<Table>& values, int thread) {
    const Share share(l.batch, thread, l.threads);
    if (share.begin == share.end) return;
    const Shape s(l.queries, l.keys, l.d_in, l.d_in, l.d_in, l.d_rel);
    const int64_t d_head = l.d_in + l.d_rel, d_out = l.d_in + l.heads * d_head;
    StreamOperands operands(s);
    Forward forward(s);
    for (int64_t b = share.begin; b < share.end; ++b) {
        operands.pack(l.stream + b * l.keys * l.d_in);
        float* to = out + b * l.queries * d_out;
        unpack_rows(to, d_out, operands.query_rows(), s.d_key8, l.queries, l.d_in);
        for (int h = 0; h < l.heads; ++h) {
            const Packed x = operands.project(W_A[h]);
            float* head = to + l.d_in + h * d_head;
            forward.run(x, keys[h], values[h], l.stats + (b * l.heads + h) * l.queries * 2, head, d_out, head + l.d_in, d_out);
        }
    }
}

void layer_backward(const Layer& l, const LayerGradients& g, const std::vector<Matrix>& W_A,
                    const std::vector<Table>& keys, const std::vector<Table>& values, float* w_sum, float* key_sum, float* value_sum, int thread) {
    const Share share(l.batch, thread, l.threads);
    if (share.begin == share.end) return;
    const Shape s(l.queries, l.keys, l.d_in, l.d_in, l.d_in, l.d_rel);
    const int64_t d_head = l.d_in + l.d_rel, d_out = l.d_in + l.heads * d_head;
    const int d8 = s.d_key8;
    StreamOperands operands(s);
    Backward backward(s);
    Buffer memory[4];
    float* grad_v = memory[0].make(int64_t(s.queries) * s.d_value8);
    float* grad_r = memory[1].make(int64_t(s.queries) * s.d_rel8);
    float* through = memory[2].make(int64_t(s.queries) * d8);
    for (int64_t b = share.begin; b < share.end; ++b) {
        operands.pack(l.stream + b * l.keys * l.d_in);
        const float* from = g.out + b * l.queries * d_out;
        float* dh = memory[3].make(int64_t(s.keys) * d8);
        float* dh_queries = dh + int64_t(s.keys - s.queries) * d8;
        for (int i = 0; i < s.queries; ++i)
            for (int d = 0; d < l.d_in; ++d) dh_queries[i * d8 + d] = from[i * d_out + d];
        for (int h = 0; h < l.heads; ++h) {
            const Packed x = operands.project(W_A[h]);
            const float* head = from + l.d_in + h * d_head;
            pack_rows(grad_v, s.d_value8, head, d_out, s.queries, s.d_value);
            pack_rows(grad_r, s.d_rel8, head + l.d_in, d_out, s.queries, s.d_rel);
            backward.run(x, keys[h], values[h], l.stats + (b * l.heads + h) * l.queries * 2, grad_v, grad_r, dh, dh,
                         key_sum + int64_t(h) * s.keys * d8, value_sum + int64_t(h) * s.keys * s.d_rel8, g.stream != nullptr);
            scatter(w_sum + int64_t(h) * l.d_in * d8, d8, operands.query_rows(), d8, s.queries, 0, l.d_in, backward.dq, d8, d8);
            if (!g.stream) continue;
            multiply(through, d8, backward.dq, d8, s.queries, W_A[h].transposed, d8, l.d_in);
            add(dh_queries, through, int64_t(s.queries) * d8);
            add(dh_queries, backward.dp, int64_t(s.queries) * d8);
        }
        if (g.stream) unpack_rows(g.stream + b * l.keys * l.d_in, l.d_in, dh, d8, l.keys, l.d_in);
    }
}

}  // namespace

extern "C" {

void disentangled_layer_forward(const Layer* layer, float* out) {
    const Layer& l = *layer;
    const auto W_A = pack_matrices(l.W_A, l.heads, l.d_in, l.d_in);
    const auto keys = pack_tables(l.R_A, l.heads, l.length, l.keys, l.d_in);
    const auto values = pack_tables(l.R_V, l.heads, l.length, l.keys, l.d_rel);
#pragma omp parallel for num_threads(l.threads) schedule(static, 1)
    for (int thread = 0; thread < l.threads; ++thread) layer_forward(l, out, W_A, keys, values, thread);
}

void disentangled_layer_backward(const Layer* layer, const LayerGradients* gradients) {
    const Layer& l = *layer;
    const auto W_A = pack_matrices(l.W_A, l.heads, l.d_in, l.d_in);
    const auto keys = pack_tables(l.R_A, l.heads, l.length, l.keys, l.d_in);
    const auto values = pack_tables(l.R_V, l.heads, l.length, l.keys, l.d_rel);
    const int d8 = padded(l.d_in);
    Sums w_sums(int64_t(l.heads) * l.d_in * d8, l.threads);
    Sums key_sums(int64_t(l.heads) * l.keys * d8, l.threads);
    Sums value_sums(int64_t(l.heads) * l.keys * padded(l.d_rel), l.threads);
#pragma omp parallel for num_threads(l.threads) schedule(static, 1)
    for (int thread = 0; thread < l.threads; ++thread)
        layer_backward(l, *gradients, W_A, keys, values, w_sums.of(thread), key_sums.of(thread), value_sums.of(thread), thread);
    w_sums.into_matrix(gradients->W_A, 0, l.heads * l.d_in, l.d_in, l.threads);
    key_sums.into_table(gradients->R_A, 0, l.heads, l.length, l.keys, l.d_in, l.threads);
    value_sums.into_table(gradients->R_V, 0, l.heads, l.length, l.keys, l.d_rel, l.threads);
}
}
