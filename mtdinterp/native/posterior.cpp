// The likelihood of many sequences at many points of the simplex:
//   out[b][n] = sum_t log( sum_g w[g][n] c[b][t][g] )
// with products of up to `steps_per_log` factors between logarithms. Points come by lag, padded with copies so
// that their number is a multiple of NODES.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "failure.h"

namespace {

constexpr int WIDTH = 4, VECTORS = 2, NODES = WIDTH * VECTORS;
typedef double Vec __attribute__((vector_size(8 * WIDTH)));

inline Vec load(const double* from) { Vec x; std::memcpy(&x, from, sizeof x); return x; }

// ORDER lags when it is positive, `order` of them otherwise.
template <int ORDER>
void one_block(double* out, const double* c, int64_t steps, int order, const double* w, int64_t nodes,
               int64_t steps_per_log) {
    const int lags = ORDER > 0 ? ORDER : order;
    double total[NODES] = {};
    for (int64_t begin = 0; begin < steps; begin += steps_per_log) {
        const int64_t end = begin + steps_per_log < steps ? begin + steps_per_log : steps;
        Vec product[VECTORS];
        for (int v = 0; v < VECTORS; ++v) product[v] = Vec{} + 1.0;
        for (int64_t t = begin; t < end; ++t) {
            Vec factor[VECTORS] = {};
            for (int g = 0; g < lags; ++g)
                for (int v = 0; v < VECTORS; ++v) factor[v] += c[t * lags + g] * load(w + g * nodes + v * WIDTH);
            for (int v = 0; v < VECTORS; ++v) product[v] *= factor[v];
        }
        for (int n = 0; n < NODES; ++n) total[n] += std::log(product[n / WIDTH][n % WIDTH]);
    }
    for (int n = 0; n < NODES; ++n) out[n] = total[n];
}

}  // namespace

extern "C" int32_t log_likelihood_at_nodes(double* out, const double* c, const double* w, int64_t batch, int64_t steps,
                                           int64_t order, int64_t nodes, int64_t steps_per_log, int64_t threads) {
    auto run = order == 2 ? one_block<2> : order == 3 ? one_block<3> : order == 4 ? one_block<4>
             : order == 5 ? one_block<5> : order == 6 ? one_block<6> : one_block<0>;
    const int64_t blocks = nodes / NODES;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t task = 0; task < batch * blocks; ++task) {
        const int64_t b = task / blocks, n = task % blocks * NODES;
        run(out + b * nodes + n, c + b * steps * order, steps, int(order), w + n, nodes, steps_per_log);
    }
    return NONE;
}
