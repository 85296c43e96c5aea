// Small products on tiles of a few rows, vectors of floats by the compiler's own extension, and packing.
//
// `scores` multiplies rows with a matrix that is stored by feature, `gather` rows with a matrix stored by row,
// and `scatter` adds the transposed product to one. Depths are padded to whole vectors.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int WIDTH = 8;        // floats in a vector
constexpr int ROWS = 4;         // query rows in registers at once
constexpr int BLOCK = 16;       // query rows in a tile of the backward pass
constexpr int MARGIN = 64;      // zeros kept around rows, for reads that overshoot or start early

typedef float Vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Mask __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Bits __attribute__((vector_size(4 * WIDTH)));

inline Vec load(const float* from) { Vec x; std::memcpy(&x, from, sizeof x); return x; }
inline void store(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }
inline Vec splat(float x) { return Vec{x, x, x, x, x, x, x, x}; }

// Hold a loaded vector in its register: a compiler may load it again for every product otherwise, and loads are what
// these loops run out of first.
#if defined(__AVX__)
inline void hold(Vec& x) { asm("" : "+x"(x)); }
#else
inline void hold(Vec&) {}
#endif

// Loops over the rows and vectors of a tile are unrolled early, so that the sums they fill live in registers alone.
#define UNROLL _Pragma("GCC unroll 16")

inline int padded(int n, int to = WIDTH) { return (n + to - 1) / to * to; }

inline float sum(Vec x) {
    float total = 0;
    for (int lane = 0; lane < WIDTH; ++lane) total += x[lane];
    return total;
}

// exp for x <= 0: 2^n times a polynomial on [-log(2)/2, log(2)/2] (relative error 2e-7). Comparisons are
// written so that NaN passes through.
inline Vec exponential(Vec x) {
    const Vec low = splat(-87.0f);
    const Mask vanishes = x < low;
    x = vanishes ? low : x;
    const Vec shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec shifted = x * splat(1.44269504f) + shift;
    const Vec n = shifted - shift;
    const Vec r = (x - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
    Vec y = splat(1.9875691500e-4f);
    y = y * r + splat(1.3981999507e-3f);
    y = y * r + splat(8.3334519073e-3f);
    y = y * r + splat(4.1665795894e-2f);
    y = y * r + splat(1.6666665459e-1f);
    y = y * r + splat(5.0000001201e-1f);
    y = y * r * r + r + splat(1.0f);
    Bits bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;  // the integer's low bits become the exponent
    Vec power;
    std::memcpy(&power, &bits, sizeof power);
    return vanishes ? splat(0.0f) : y * power;
}

// S[r][n] = sum_d P[r][d] M[d][n] + sum_e R[r][e] T[e][n - r] for n < n_end: both matrices by feature. T points
// at row 0's first column, and each later row starts one column further left.
template <int R>
void scores_rows(float* S, int stride, const float* P, int p_stride, int depth, const float* M, int m_stride,
                 const float* Q, int q_stride, int q_depth, const float* T, int t_stride, int n_end) {
    for (int n = 0; n < n_end; n += 2 * WIDTH) {
        Vec left[R], right[R];
        UNROLL for (int r = 0; r < R; ++r) left[r] = right[r] = splat(0);
        for (int d = 0; d < depth; ++d) {
            Vec a = load(M + d * m_stride + n), b = load(M + d * m_stride + n + WIDTH);
            hold(a), hold(b);
            UNROLL for (int r = 0; r < R; ++r) {
                const Vec x = splat(P[r * p_stride + d]);
                left[r] += x * a;
                right[r] += x * b;
            }
        }
        for (int d = 0; d < q_depth; ++d) {
            const float* row = T + d * t_stride + n;
            UNROLL for (int r = 0; r < R; ++r) {
                const Vec x = splat(Q[r * q_stride + d]);
                left[r] += x * load(row - r);
                right[r] += x * load(row - r + WIDTH);
            }
        }
        UNROLL for (int r = 0; r < R; ++r) {
            store(S + r * stride + n, left[r]);
            store(S + r * stride + n + WIDTH, right[r]);
        }
    }
}

void scores(int rows, float* S, int stride, const float* P, int p_stride, int depth, const float* M, int m_stride,
            const float* Q, int q_stride, int q_depth, const float* T, int t_stride, int n_end) {
    auto run = rows == 4 ? scores_rows<4> : rows == 3 ? scores_rows<3> : rows == 2 ? scores_rows<2> : scores_rows<1>;
    run(S, stride, P, p_stride, depth, M, m_stride, Q, q_stride, q_depth, T, t_stride, n_end);
}

// C[r][d] = sum_{n_begin <= n < n_end} X[r][n] M[n][d], M by row with its depth padded to vectors.
template <int R, int V>
void gather_rows(float* C, int c_stride, const float* X, int stride, int n_begin, int n_end, const float* M,
                 int m_stride) {
    Vec total[R][V];
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int v = 0; v < V; ++v) total[r][v] = splat(0);
    for (int n = n_begin; n < n_end; ++n) {
        Vec m[V];
        UNROLL for (int v = 0; v < V; ++v) m[v] = load(M + n * m_stride + v * WIDTH), hold(m[v]);
        UNROLL for (int r = 0; r < R; ++r) {
            const Vec x = splat(X[r * stride + n]);
            UNROLL for (int v = 0; v < V; ++v) total[r][v] += x * m[v];
        }
    }
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int v = 0; v < V; ++v) store(C + r * c_stride + v * WIDTH, total[r][v]);
}

// The same for one vector of depth, with two sums for each row: one would wait for itself.
template <int R>
void gather_narrow(float* C, int c_stride, const float* X, int stride, int n_begin, int n_end, const float* M,
                   int m_stride) {
    Vec even[R], odd[R];
    UNROLL for (int r = 0; r < R; ++r) even[r] = odd[r] = splat(0);
    int n = n_begin;
    for (; n + 2 <= n_end; n += 2) {
        Vec a = load(M + n * m_stride), b = load(M + (n + 1) * m_stride);
        hold(a), hold(b);
        UNROLL for (int r = 0; r < R; ++r) {
            even[r] += splat(X[r * stride + n]) * a;
            odd[r] += splat(X[r * stride + n + 1]) * b;
        }
    }
    if (n < n_end)
        UNROLL for (int r = 0; r < R; ++r) even[r] += splat(X[r * stride + n]) * load(M + n * m_stride);
    UNROLL for (int r = 0; r < R; ++r) store(C + r * c_stride, even[r] + odd[r]);
}

template <int R>
void gather_fixed(float* C, int c_stride, const float* X, int stride, int n_begin, int n_end, const float* M,
                  int m_stride, int depth) {
    int d = 0;
    for (; d + 2 * WIDTH <= depth; d += 2 * WIDTH)
        gather_rows<R, 2>(C + d, c_stride, X, stride, n_begin, n_end, M + d, m_stride);
    if (d < depth) gather_narrow<R>(C + d, c_stride, X, stride, n_begin, n_end, M + d, m_stride);
}

void gather(int rows, float* C, int c_stride, const float* X, int stride, int n_begin, int n_end, const float* M,
            int m_stride, int depth) {
    auto run = rows == 4 ? gather_fixed<4> : rows == 3 ? gather_fixed<3> : rows == 2 ? gather_fixed<2> : gather_fixed<1>;
    run(C, c_stride, X, stride, n_begin, n_end, M, m_stride, depth);
}

// G[n][d] += sum_r X[r][n] P[r][d] over the rows from `first` on.
template <int N, int V>
void scatter_columns(float* G, int g_stride, const float* X, int stride, int first, int rows, const float* P, int p_stride) {
    Vec total[N][V];
    UNROLL for (int n = 0; n < N; ++n)
        UNROLL for (int v = 0; v < V; ++v) total[n][v] = load(G + n * g_stride + v * WIDTH);
    for (int r = first; r < rows; ++r) {
        Vec p[V];
        UNROLL for (int v = 0; v < V; ++v) p[v] = load(P + r * p_stride + v * WIDTH), hold(p[v]);
        UNROLL for (int n = 0; n < N; ++n) {
            const Vec x = splat(X[r * stride + n]);
            UNROLL for (int v = 0; v < V; ++v) total[n][v] += x * p[v];
        }
    }
    UNROLL for (int n = 0; n < N; ++n)
        UNROLL for (int v = 0; v < V; ++v) store(G + n * g_stride + v * WIDTH, total[n][v]);
}

// Which entries of X are zero, so that rows before them can be left out: none, those of keys n > i + r (`RISING`, by
// key), or those of columns n < i - r (`FALLING`, by offset).
struct Corner {
    enum Kind { NONE, RISING, FALLING } kind;
    int i;
    int first_row(int n, int columns) const {
        const int row = kind == RISING ? n - i : kind == FALLING ? i - (n + columns - 1) : 0;
        return row > 0 ? row : 0;
    }
};

template <int N, int V>
void scatter_depth(float* G, int g_stride, const float* X, int stride, int rows, int n_begin, int n_end,
                   const float* P, int p_stride, Corner corner) {
    int n = n_begin;
    for (; n + N <= n_end; n += N)
        scatter_columns<N, V>(G + n * g_stride, g_stride, X + n, stride, corner.first_row(n, N), rows, P, p_stride);
    for (; n < n_end; ++n)
        scatter_columns<1, V>(G + n * g_stride, g_stride, X + n, stride, corner.first_row(n, 1), rows, P, p_stride);
}

void scatter(float* G, int g_stride, const float* X, int stride, int rows, int n_begin, int n_end, const float* P,
             int p_stride, int depth, Corner corner = {Corner::NONE, 0}) {
    int d = 0;
    for (; d + 2 * WIDTH <= depth; d += 2 * WIDTH)
        scatter_depth<4, 2>(G + d, g_stride, X, stride, rows, n_begin, n_end, P + d, p_stride, corner);
    if (d < depth) scatter_depth<8, 1>(G + d, g_stride, X, stride, rows, n_begin, n_end, P + d, p_stride, corner);
}

// to = from, scaled.
inline void scale_row(float* to, const float* from, int depth, float scale) {
    int d = 0;
    for (; d + WIDTH <= depth; d += WIDTH) store(to + d, load(from + d) * splat(scale));
    for (; d < depth; ++d) to[d] = from[d] * scale;
}

// to += from, `count` a multiple of the vector.
inline void add(float* to, const float* from, int64_t count) {
    for (int64_t n = 0; n < count; n += WIDTH) store(to + n, load(to + n) + load(from + n));
}

// Replace what stands after column `last` of a row, up to `stop` (a multiple of the vector).
inline void replace_after(float* row, int last, int stop, float value) {
    const Mask lane = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int n = last & -WIDTH; n < stop; n += WIDTH) {
        const Mask beyond = lane + n > last;
        store(row + n, beyond ? splat(value) : load(row + n));
    }
}

// Rows [n][depth] padded to vectors, from strided memory.
void pack_rows(float* to, int to_stride, const float* from, int64_t step, int n, int depth) {
    for (int i = 0; i < n; ++i) {
        std::memcpy(to + i * to_stride, from + i * step, depth * sizeof(float));
        for (int d = depth; d < to_stride; ++d) to[i * to_stride + d] = 0;
    }
}

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Mask{__VA_ARGS__})
#endif

// Eight rows of eight become eight columns.
inline void transpose(float* to, int to_stride, const float* from, int64_t step) {
    Vec x[8], y[8];
    UNROLL for (int i = 0; i < 8; ++i) x[i] = load(from + i * step);
    UNROLL for (int i = 0; i < 8; i += 2) {
        y[i] = SHUFFLE(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        y[i + 1] = SHUFFLE(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int j = i; j < i + 2; ++j) {
            x[j] = SHUFFLE(y[j], y[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            x[j + 2] = SHUFFLE(y[j], y[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    UNROLL for (int i = 0; i < 4; ++i) {
        store(to + i * to_stride, SHUFFLE(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
        store(to + (i + 4) * to_stride, SHUFFLE(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
    }
}

// The same by feature, [depth][n].
void pack_features(float* to, int to_stride, const float* from, int64_t step, int n, int depth) {
    int d = 0;
    for (; d + 8 <= depth; d += 8) {
        int i = 0;
        for (; i + 8 <= n; i += 8) transpose(to + d * to_stride + i, to_stride, from + i * step + d, step);
        for (; i < n; ++i)
            for (int e = d; e < d + 8; ++e) to[e * to_stride + i] = from[i * step + e];
    }
    for (; d < depth; ++d)
        for (int i = 0; i < n; ++i) to[d * to_stride + i] = from[i * step + d];
}

void unpack_rows(float* to, int64_t step, const float* from, int from_stride, int n, int depth) {
    for (int i = 0; i < n; ++i) std::memcpy(to + i * step, from + i * from_stride, depth * sizeof(float));
}

struct Buffer {
    std::vector<float> memory;
    float* make(int64_t size) { memory.assign(size + 2 * MARGIN, 0.0f); return memory.data() + MARGIN; }
};

}  // namespace
