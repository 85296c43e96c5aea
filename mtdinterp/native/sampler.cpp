// Draw MTD sequences from uniforms that NumPy made: the arithmetic of `sampling._draw_chunk`, to the bit, so this
// file is compiled without contracting a*b + c into one rounding.

#include <cstdint>
#include <vector>

extern "C" void draw_tokens(int64_t* tokens, int64_t* lags, const double* keep, const int64_t* other, int64_t vocab,
                            const double* boundaries, const double* lag_uniform, const double* token_uniform,
                            const int64_t* first_tokens, int64_t batch, int64_t order, int64_t length,
                            int64_t token_stride, int64_t threads) {
    constexpr int64_t GROUP = 64;  // sequences drawn together: a row of uniforms fills whole cache lines
    const int64_t groups = (batch + GROUP - 1) / GROUP;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t begin = group * GROUP, size = batch - begin < GROUP ? batch - begin : GROUP;
        std::vector<int32_t> drawn(length * GROUP);
        for (int64_t t = 0; t < order; ++t)
            for (int64_t b = 0; b < size; ++b) drawn[t * GROUP + b] = int32_t(first_tokens[t * batch + begin + b]);
        for (int64_t t = order; t < length; ++t) {
            const double* u = lag_uniform + (t - order) * batch + begin;
            const double* v = token_uniform + (t - order) * batch + begin;
            for (int64_t b = 0; b < size; ++b) {
                int64_t lag = 1;
                for (int64_t g = 0; g + 1 < order; ++g) lag += u[b] >= boundaries[g * batch + begin + b];
                const double scaled = v[b] * double(vocab);
                const int64_t column = int64_t(scaled);
                const int64_t cell = column * vocab + drawn[(t - lag) * GROUP + b];
                const bool kept = scaled - double(column) < keep[cell];
                drawn[t * GROUP + b] = int32_t(kept ? column : other[cell]);
                lags[(begin + b) * token_stride + t] = lag;
            }
        }
        for (int64_t b = 0; b < size; ++b)
            for (int64_t t = 0; t < length; ++t) tokens[(begin + b) * token_stride + t] = drawn[t * GROUP + b];
    }
}
