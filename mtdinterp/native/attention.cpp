// Relative attention on given queries, keys and values: the operator that serves every model.

#include "attention_core.h"
#include "failure.h"

extern "C" {

// Strides of one operand: elements between batches, positions and heads; features are contiguous.
struct Operand { float* data; int64_t batch, pos, head; };

struct Problem {
    int32_t batch, heads, queries, keys, length;   // length: rows of the tables
    int32_t d_key, d_pos, d_value, d_rel, threads;
    Operand q, p, k, v;
    const float *key_table, *value_table;          // [head, length, d]
    float* stats;                                  // [batch, head, query, 2]: row maximum, row sum
};

struct Gradients {
    Operand out_v, out_r;                          // gradients of the outputs
    Operand q, p, k, v;
    float *key_table, *value_table;                // [head, length, d]
};
}

namespace {

inline float* at(const Operand& x, int b, int h) { return x.data + b * x.batch + h * x.head; }

// Buffers for the operands of one sequence and head.
struct Operands {
    const Shape& s;
    Buffer memory[6];
    float *q, *p, *k, *v, *k_features, *v_features;

    explicit Operands(const Shape& shape) : s(shape) {
        q = memory[0].make(int64_t(s.queries) * s.d_key8);
        p = memory[1].make(int64_t(s.queries) * s.d_pos8);
        k = memory[2].make(int64_t(s.keys) * s.d_key8);
        v = memory[3].make(int64_t(s.keys) * s.d_value8);
        k_features = memory[4].make(int64_t(s.d_key) * s.feature_stride);
        v_features = memory[5].make(int64_t(s.d_value) * s.feature_stride);
    }

    Packed pack(const Problem& problem, int b, int h, bool for_backward) {
        pack_rows(q, s.d_key8, at(problem.q, b, h), problem.q.pos, s.queries, s.d_key);
        pack_rows(p, s.d_pos8, at(problem.p, b, h), problem.p.pos, s.queries, s.d_pos);
        pack_rows(v, s.d_value8, at(problem.v, b, h), problem.v.pos, s.keys, s.d_value);
        pack_features(k_features, s.feature_stride, at(problem.k, b, h), problem.k.pos, s.keys, s.d_key);
        if (for_backward) {
            pack_rows(k, s.d_key8, at(problem.k, b, h), problem.k.pos, s.keys, s.d_key);
            pack_features(v_features, s.feature_stride, at(problem.v, b, h), problem.v.pos, s.keys, s.d_value);
        }
        return {q, p, k, v, k_features, v_features};
    }
};

void attention_forward(const Problem& p, const Operand& out_v, const Operand& out_r, const std::vector<Table>& keys,
                       const std::vector<Table>& values, int thread) {
    const Share share(int64_t(p.batch) * p.heads, thread, p.threads);
    if (share.begin == share.end) return;
    const Shape s(p.queries, p.keys, p.d_key, p.d_pos, p.d_value, p.d_rel);
    Operands operands(s);
    Forward forward(s);
    for (int64_t pair = share.begin; pair < share.end; ++pair) {
        const int b = int(pair / p.heads), h = int(pair % p.heads);
        const Packed x = operands.pack(p, b, h, false);
        forward.run(x, keys[h], values[h], p.stats + pair * p.queries * 2, at(out_v, b, h), out_v.pos, at(out_r, b, h),
                    out_r.pos);
    }
}

void attention_backward(const Problem& p, const Gradients& g, const std::vector<Table>& keys,
                        const std::vector<Table>& values, float* key_sum, float* value_sum, int thread) {
    const Share share(int64_t(p.batch) * p.heads, thread, p.threads);
    if (share.begin == share.end) return;
    const Shape s(p.queries, p.keys, p.d_key, p.d_pos, p.d_value, p.d_rel);
    Operands operands(s);
    Backward backward(s);
    Buffer memory[4];
    float* grad_v = memory[0].make(int64_t(s.queries) * s.d_value8);
    float* grad_r = memory[1].make(int64_t(s.queries) * s.d_rel8);
    for (int64_t pair = share.begin; pair < share.end; ++pair) {
        const int b = int(pair / p.heads), h = int(pair % p.heads);
        const Packed x = operands.pack(p, b, h, true);
        pack_rows(grad_v, s.d_value8, at(g.out_v, b, h), g.out_v.pos, s.queries, s.d_value);
        pack_rows(grad_r, s.d_rel8, at(g.out_r, b, h), g.out_r.pos, s.queries, s.d_rel);
        float* dk = memory[2].make(int64_t(s.keys) * s.d_key8);
        float* dv = memory[3].make(int64_t(s.keys) * s.d_value8);
        backward.run(x, keys[h], values[h], p.stats + pair * p.queries * 2, grad_v, grad_r, dk, dv,
                     key_sum + int64_t(h) * s.keys * s.d_pos8, value_sum + int64_t(h) * s.keys * s.d_rel8, true);
        unpack_rows(at(g.q, b, h), g.q.pos, backward.dq, s.d_key8, s.queries, s.d_key);
        unpack_rows(at(g.p, b, h), g.p.pos, backward.dp, s.d_pos8, s.queries, s.d_pos);
        unpack_rows(at(g.k, b, h), g.k.pos, dk, s.d_key8, s.keys, s.d_key);
        unpack_rows(at(g.v, b, h), g.v.pos, dv, s.d_value8, s.keys, s.d_value);
    }
}

}  // namespace

extern "C" {

int32_t relative_attention_forward(const Problem* problem, const Operand* out_v, const Operand* out_r) {
    const Problem& p = *problem;
    Failures failures;
    failures.guard([&] {
        const auto keys = pack_tables(p.key_table, p.heads, p.length, p.keys, p.d_pos);
        const auto values = pack_tables(p.value_table, p.heads, p.length, p.keys, p.d_rel);
#pragma omp parallel for num_threads(p.threads) schedule(static, 1)
        for (int thread = 0; thread < p.threads; ++thread)
            failures.guard([&] { attention_forward(p, *out_v, *out_r, keys, values, thread); });
    });
    return failures.code;
}

int32_t relative_attention_backward(const Problem* problem, const Gradients* gradients) {
    const Problem& p = *problem;
    Failures failures;
    failures.guard([&] {
        const auto keys = pack_tables(p.key_table, p.heads, p.length, p.keys, p.d_pos);
        const auto values = pack_tables(p.value_table, p.heads, p.length, p.keys, p.d_rel);
        Sums key_sums(int64_t(p.heads) * p.keys * padded(p.d_pos), p.threads);
        Sums value_sums(int64_t(p.heads) * p.keys * padded(p.d_rel), p.threads);
#pragma omp parallel for num_threads(p.threads) schedule(static, 1)
        for (int thread = 0; thread < p.threads; ++thread)
            failures.guard([&] {
                attention_backward(p, *gradients, keys, values, key_sums.of(thread), value_sums.of(thread), thread);
            });
        key_sums.into_table(gradients->key_table, 0, p.heads, p.length, p.keys, p.d_pos, p.threads);
        value_sums.into_table(gradients->value_table, 0, p.heads, p.length, p.keys, p.d_rel, p.threads);
    });
    return failures.code;
}
}
