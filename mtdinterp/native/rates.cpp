// How fast this machine multiplies and exponentiates, by the same vectors as the kernels use.

#include "tile.h"

extern "C" {

// `rounds` times ten independent chains of fused multiply-adds on every thread; a value that depends on all of them.
float multiply_add_rounds(int64_t rounds, int32_t threads) {
    float result = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : result)
    for (int thread = 0; thread < threads; ++thread) {
        Vec chain[10];
        UNROLL for (int i = 0; i < 10; ++i) chain[i] = splat(0.1f * i + thread);
        const Vec factor = splat(0.999f), term = splat(1e-3f);
        for (int64_t n = 0; n < rounds; ++n)
            UNROLL for (int i = 0; i < 10; ++i) chain[i] = chain[i] * factor + term;
        UNROLL for (int i = 0; i < 10; ++i) result += sum(chain[i]);
    }
    return result;
}

// `rounds` times 512 exponentials on every thread, from and to the first cache.
float exponential_rounds(int64_t rounds, int32_t threads) {
    float result = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : result)
    for (int thread = 0; thread < threads; ++thread) {
        float from[512], to[512];
        for (int i = 0; i < 512; ++i) from[i] = -0.01f * i, to[i] = 0;
        for (int64_t n = 0; n < rounds; ++n) {
            from[n % 512] -= 1e-3f;
            for (int i = 0; i < 512; i += 4 * WIDTH)
                UNROLL for (int j = 0; j < 4; ++j) store(to + i + j * WIDTH, exponential(load(from + i + j * WIDTH)));
            result += to[n % 512];
        }
    }
    return result;
}
}
