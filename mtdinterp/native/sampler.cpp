// Draw MTD sequences from uniforms that NumPy made: the arithmetic of `sampling.draw_tokens`, to the bit, so this
// file is compiled without contracting a*b + c into one rounding.

#include <cstdint>
#include <vector>

#include "failure.h"

namespace {

// Look-ups trust their indices, so these are checked, whole rows at a time and without a branch for each.
void check_tokens(const int64_t* token, int64_t count, int64_t vocab) {
    bool good = true;
    for (int64_t n = 0; n < count; ++n) good &= (token[n] >= 0) & (token[n] < vocab);
    if (!good) throw std::out_of_range("token");
}

void check_uniforms(const double* u, int64_t count) {
    bool good = true;
    for (int64_t n = 0; n < count; ++n) good &= (u[n] >= 0) & (u[n] < 1);
    if (!good) throw std::out_of_range("uniform");
}

}  // namespace

extern "C" int32_t draw_tokens(int64_t* tokens, int64_t* lags, const double* keep, const int64_t* other, int64_t vocab,
                               const double* boundaries, const double* lag_uniform, const double* token_uniform,
                               const int64_t* first_tokens, int64_t batch, int64_t order, int64_t length,
                               int64_t token_stride, int64_t threads) {
    constexpr int64_t GROUP = 64;  // sequences drawn together: a row of uniforms fills whole cache lines
    const int64_t groups = (batch + GROUP - 1) / GROUP;
    Failures failures;
    failures.guard([&] { check_tokens(other, vocab * vocab, vocab); });
    if (failures.code) return failures.code;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t group = 0; group < groups; ++group) failures.guard([&] {
        const int64_t begin = group * GROUP, size = batch - begin < GROUP ? batch - begin : GROUP;
        std::vector<int32_t> drawn(length * GROUP), lag(length * GROUP);
        for (int64_t t = 0; t < order; ++t) check_tokens(first_tokens + t * batch + begin, size, vocab);
        for (int64_t t = 0; t < order; ++t)
            for (int64_t b = 0; b < size; ++b) drawn[t * GROUP + b] = int32_t(first_tokens[t * batch + begin + b]);
        // Step by step over the group, so that all but the look-up runs in vectors.
        double scaled[GROUP], rest[GROUP];
        int32_t column[GROUP];
        for (int64_t t = order; t < length; ++t) {
            const double* u = lag_uniform + (t - order) * batch + begin;
            const double* v = token_uniform + (t - order) * batch + begin;
            check_uniforms(v, size);
            int32_t* here = lag.data() + t * GROUP;
            for (int64_t b = 0; b < size; ++b) here[b] = 1;
            for (int64_t g = 0; g + 1 < order; ++g) {
                const double* boundary = boundaries + g * batch + begin;
                for (int64_t b = 0; b < size; ++b) here[b] += u[b] >= boundary[b];
            }
            for (int64_t b = 0; b < size; ++b) scaled[b] = v[b] * double(vocab);
            for (int64_t b = 0; b < size; ++b) column[b] = int32_t(scaled[b]);
            for (int64_t b = 0; b < size; ++b) rest[b] = scaled[b] - double(column[b]);
            for (int64_t b = 0; b < size; ++b) {
                const int64_t cell = column[b] * vocab + drawn[(t - here[b]) * GROUP + b];
                // Without a branch, which would be a coin toss for the processor.
                const int32_t taken = -int32_t(rest[b] < keep[cell]);
                drawn[t * GROUP + b] = (column[b] & taken) | (int32_t(other[cell]) & ~taken);
            }
        }
        for (int64_t b = 0; b < size; ++b)
            for (int64_t t = 0; t < length; ++t) {
                tokens[(begin + b) * token_stride + t] = drawn[t * GROUP + b];
                lags[(begin + b) * token_stride + t] = lag[t * GROUP + b];
            }
    });
    return failures.code;
}
