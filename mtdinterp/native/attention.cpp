// Relative attention, forward and backward, for one sequence and head at a time.
//
//   score[i, j] = q_i . k_j + p_i . key_table[i - j],   A = softmax over j <= i,
//   out_v[i] = sum_j A[i, j] v_j,   out_r[i] = sum_j A[i, j] value_table[i - j].
//
// Scores live in a tile of a few rows that stays in the cache; nothing of size queries x keys is stored, and
// the backward pass recomputes the tile from the row maxima and sums that the forward pass kept.
//
// Tables are held by c = K - 1 - offset. Then A[i, j] stands at c = j + (K - 1 - i), so a tile read with its
// row stride plus one, from the right place, is the same attention by offset: no element is moved. Everything
// is built from three small products on such tiles (`scores`, `gather`, `scatter`).
//
// Two entry points share this core: relative attention on given queries, keys and values, and a whole layer of
// the disentangled transformer, where all of them come from one stream and the output is appended to it.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int WIDTH = 8;        // floats in a vector
constexpr int ROWS = 4;         // query rows in registers at once
constexpr int BLOCK = 32;       // query rows in a tile of the backward pass
constexpr int MARGIN = 64;      // zeros kept around rows, for reads that overshoot or start early

typedef float Vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Mask __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Bits __attribute__((vector_size(4 * WIDTH)));

inline Vec load(const float* from) { Vec x; std::memcpy(&x, from, sizeof x); return x; }
inline void store(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }
inline Vec splat(float x) { return Vec{x, x, x, x, x, x, x, x}; }
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
        Vec left[R] = {}, right[R] = {};
        for (int d = 0; d < depth; ++d) {
            const Vec a = load(M + d * m_stride + n), b = load(M + d * m_stride + n + WIDTH);
            for (int r = 0; r < R; ++r) {
                const Vec x = splat(P[r * p_stride + d]);
                left[r] += x * a;
                right[r] += x * b;
            }
        }
        for (int d = 0; d < q_depth; ++d) {
            const float* row = T + d * t_stride + n;
            for (int r = 0; r < R; ++r) {
                const Vec x = splat(Q[r * q_stride + d]);
                left[r] += x * load(row - r);
                right[r] += x * load(row - r + WIDTH);
            }
        }
        for (int r = 0; r < R; ++r) {
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
    Vec total[R][V] = {};
    for (int n = n_begin; n < n_end; ++n) {
        Vec m[V];
        for (int v = 0; v < V; ++v) m[v] = load(M + n * m_stride + v * WIDTH);
        for (int r = 0; r < R; ++r) {
            const Vec x = splat(X[r * stride + n]);
            for (int v = 0; v < V; ++v) total[r][v] += x * m[v];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(C + r * c_stride + v * WIDTH, total[r][v]);
}

template <int R>
void gather_fixed(float* C, int c_stride, const float* X, int stride, int n_begin, int n_end, const float* M,
                  int m_stride, int depth) {
    int d = 0;
    for (; d + 2 * WIDTH <= depth; d += 2 * WIDTH)
        gather_rows<R, 2>(C + d, c_stride, X, stride, n_begin, n_end, M + d, m_stride);
    if (d < depth) gather_rows<R, 1>(C + d, c_stride, X, stride, n_begin, n_end, M + d, m_stride);
}

void gather(int rows, float* C, int c_stride, const float* X, int stride, int n_begin, int n_end, const float* M,
            int m_stride, int depth) {
    auto run = rows == 4 ? gather_fixed<4> : rows == 3 ? gather_fixed<3> : rows == 2 ? gather_fixed<2> : gather_fixed<1>;
    run(C, c_stride, X, stride, n_begin, n_end, M, m_stride, depth);
}

// G[n][d] += sum_r X[r][n] P[r][d] for n_begin <= n < n_end.
template <int N, int V>
void scatter_columns(float* G, int g_stride, const float* X, int stride, int rows, const float* P, int p_stride) {
    Vec total[N][V];
    for (int n = 0; n < N; ++n)
        for (int v = 0; v < V; ++v) total[n][v] = load(G + n * g_stride + v * WIDTH);
    for (int r = 0; r < rows; ++r) {
        Vec p[V];
        for (int v = 0; v < V; ++v) p[v] = load(P + r * p_stride + v * WIDTH);
        for (int n = 0; n < N; ++n) {
            const Vec x = splat(X[r * stride + n]);
            for (int v = 0; v < V; ++v) total[n][v] += x * p[v];
        }
    }
    for (int n = 0; n < N; ++n)
        for (int v = 0; v < V; ++v) store(G + n * g_stride + v * WIDTH, total[n][v]);
}

template <int V>
void scatter_depth(float* G, int g_stride, const float* X, int stride, int rows, int n_begin, int n_end,
                   const float* P, int p_stride) {
    int n = n_begin;
    for (; n + 4 <= n_end; n += 4) scatter_columns<4, V>(G + n * g_stride, g_stride, X + n, stride, rows, P, p_stride);
    for (; n < n_end; ++n) scatter_columns<1, V>(G + n * g_stride, g_stride, X + n, stride, rows, P, p_stride);
}

void scatter(float* G, int g_stride, const float* X, int stride, int rows, int n_begin, int n_end, const float* P,
             int p_stride, int depth) {
    int d = 0;
    for (; d + 2 * WIDTH <= depth; d += 2 * WIDTH)
        scatter_depth<2>(G + d, g_stride, X, stride, rows, n_begin, n_end, P + d, p_stride);
    if (d < depth) scatter_depth<1>(G + d, g_stride, X, stride, rows, n_begin, n_end, P + d, p_stride);
}

// Rows [n][depth] padded to vectors, from strided memory.
void pack_rows(float* to, int to_stride, const float* from, int64_t step, int n, int depth) {
    for (int i = 0; i < n; ++i) {
        std::memcpy(to + i * to_stride, from + i * step, depth * sizeof(float));
        for (int d = depth; d < to_stride; ++d) to[i * to_stride + d] = 0;
    }
}

// The same by feature, [depth][n].
void pack_features(float* to, int to_stride, const float* from, int64_t step, int n, int depth) {
    for (int i = 0; i < n; ++i)
        for (int d = 0; d < depth; ++d) to[d * to_stride + i] = from[i * step + d];
}

void unpack_rows(float* to, int64_t step, const float* from, int from_stride, int n, int depth) {
    for (int i = 0; i < n; ++i) std::memcpy(to + i * step, from + i * from_stride, depth * sizeof(float));
}

struct Buffer {
    std::vector<float> memory;
    float* make(int64_t size) { memory.assign(size + 2 * MARGIN, 0.0f); return memory.data() + MARGIN; }
};

// One table by c = n_keys - 1 - offset, both by row and by feature.
struct Table {
    int depth = 0, row_stride = 0, feature_stride = 0;
    Buffer row_memory, feature_memory;
    float *rows = nullptr, *features = nullptr;
    void pack(const float* table, int n_keys, int table_depth) {
        depth = table_depth;
        row_stride = padded(depth);
        feature_stride = padded(n_keys) + MARGIN;
        rows = row_memory.make(int64_t(n_keys) * row_stride);
        features = feature_memory.make(int64_t(depth) * feature_stride);
        for (int c = 0; c < n_keys; ++c) {
            const float* row = table + int64_t(n_keys - 1 - c) * depth;
            for (int d = 0; d < depth; ++d) {
                rows[int64_t(c) * row_stride + d] = row[d];
                features[int64_t(d) * feature_stride + c] = row[d];
            }
        }
    }
};

// What one sequence and head look like to the core: rows padded to vectors, and features [d][key].
struct Shape {
    int queries, keys, d_key, d_pos, d_value, d_rel;
    int d_key8, d_pos8, d_value8, d_rel8, feature_stride, tile_stride;
    Shape(int queries, int keys, int d_key, int d_pos, int d_value, int d_rel)
        : queries(queries), keys(keys), d_key(d_key), d_pos(d_pos), d_value(d_value), d_rel(d_rel),
          d_key8(padded(d_key)), d_pos8(padded(d_pos)), d_value8(padded(d_value)), d_rel8(padded(d_rel)),
          feature_stride(padded(keys, 2 * WIDTH) + MARGIN), tile_stride(padded(keys, 2 * WIDTH) + MARGIN) {}
    int position(int query) const { return keys - queries + query; }
};

struct Packed { const float *q, *p, *k, *v, *k_features, *v_features; };

// Raw scores of `rows` queries from `first` on.
void score(const Shape& s, const Packed& x, const Table& table, int first, int rows, float* to) {
    const int i = s.position(first);
    scores(rows, to, s.tile_stride, x.q + first * s.d_key8, s.d_key8, s.d_key, x.k_features, s.feature_stride,
           x.p + first * s.d_pos8, s.d_pos8, s.d_pos, table.features + (s.keys - 1 - i), table.feature_stride, i + rows);
}

// Turn row i of a tile into exp(score - maximum), zero from i + 1 to `end`.
inline void exponentiate(float* row, int i, int end, float maximum) {
    for (int n = 0; n <= i; n += WIDTH) store(row + n, exponential(load(row + n) - splat(maximum)));
    for (int n = i + 1; n < end; ++n) row[n] = 0;
}

inline float row_maximum(float* row, int i) {
    // Lanes past the diagonal are made harmless; a NaN is found again by the sum.
    for (int n = i + 1; n < padded(i + 1); ++n) row[n] = row[i];
    Vec best = load(row);
    for (int n = WIDTH; n <= i; n += WIDTH) {
        const Vec x = load(row + n);
        best = x > best ? x : best;
    }
    float maximum = best[0];
    for (int lane = 1; lane < WIDTH; ++lane) maximum = best[lane] > maximum ? best[lane] : maximum;
    return maximum;
}

inline float row_sum(const float* row, int end) {
    Vec total = {};
    for (int n = 0; n < end; n += WIDTH) total += load(row + n);
    return sum(total);
}

// Attention of one sequence and head. `stats` keeps each row's maximum and sum; outputs go to strided rows.
struct Forward {
    const Shape& s;
    Buffer tile_memory, v_memory, r_memory;
    float *tile, *v_rows, *r_rows;

    explicit Forward(const Shape& shape) : s(shape) {
        tile = tile_memory.make(int64_t(ROWS) * (s.tile_stride + 1));
        v_rows = v_memory.make(ROWS * s.d_value8);
        r_rows = r_memory.make(ROWS * s.d_rel8);
    }

    void run(const Packed& x, const Table& keys, const Table& values, float* stats, float* out_v, int64_t v_step,
             float* out_r, int64_t r_step) {
        for (int first = 0; first < s.queries; first += ROWS) {
            const int rows = s.queries - first < ROWS ? s.queries - first : ROWS;
            const int i0 = s.position(first), visible = i0 + rows, stop = padded(visible, 2 * WIDTH);
            score(s, x, keys, first, rows, tile);
            for (int r = 0; r < rows; ++r) {
                float* row = tile + r * s.tile_stride;
                const float maximum = row_maximum(row, i0 + r);
                exponentiate(row, i0 + r, stop, maximum);
                stats[2 * (first + r)] = maximum;
                stats[2 * (first + r) + 1] = row_sum(row, stop);
            }
            gather(rows, v_rows, s.d_value8, tile, s.tile_stride, 0, visible, x.v, s.d_value8, s.d_value8);
            gather(rows, r_rows, s.d_rel8, tile - (s.keys - 1 - i0), s.tile_stride + 1, s.keys - visible, s.keys,
                   values.rows, s.d_rel8, s.d_rel8);
            for (int r = 0; r < rows; ++r) {
                const float scale = 1 / stats[2 * (first + r) + 1];
                float *to_v = out_v + (first + r) * v_step, *to_r = out_r + (first + r) * r_step;
                for (int d = 0; d < s.d_value; ++d) to_v[d] = v_rows[r * s.d_value8 + d] * scale;
                for (int d = 0; d < s.d_rel; ++d) to_r[d] = r_rows[r * s.d_rel8 + d] * scale;
            }
        }
    }
};

// Its gradients. With A = exp(score - maximum)/sum and dA the gradient that reaches A,
// dS = A (dA - sum_j A dA); then every operand is one gather or scatter of dS or A away. Rows dq and dp are
// set; k, v and the tables are added to. With `inputs` false only dq and the tables are computed.
struct Backward {
    const Shape& s;
    Buffer a_memory, ds_memory, q_memory, p_memory;
    float *a, *ds, *dq, *dp;

    explicit Backward(const Shape& shape) : s(shape) {
        a = a_memory.make(int64_t(BLOCK) * (s.tile_stride + 1));
        ds = ds_memory.make(int64_t(BLOCK) * (s.tile_stride + 1));
        dq = q_memory.make(int64_t(s.queries) * s.d_key8);
        dp = p_memory.make(int64_t(s.queries) * s.d_pos8);
    }

    void run(const Packed& x, const Table& keys, const Table& values, const float* stats, const float* grad_v,
             const float* grad_r, float* dk, float* dv, float* key_table, float* value_table, bool inputs) {
        const int stride = s.tile_stride;
        for (int block = 0; block < s.queries; block += BLOCK) {
            const int block_rows = s.queries - block < BLOCK ? s.queries - block : BLOCK;
            const int i0 = s.position(block), visible = i0 + block_rows, stop = padded(visible, 2 * WIDTH);
            for (int at_row = 0; at_row < block_rows; at_row += ROWS) {
                const int rows = block_rows - at_row < ROWS ? block_rows - at_row : ROWS;
                attention_and_slope(x, keys, values, stats, grad_v, grad_r, block + at_row, rows, stop, a + at_row * stride,
                                    ds + at_row * stride);
            }
            // By offset, row r of the block starts `shift - r` columns into the tables.
            const int shift = s.keys - 1 - i0, c_begin = s.keys - visible;
            for (int at_row = 0; at_row < block_rows; at_row += ROWS) {
                const int first = block + at_row, rows = block_rows - at_row < ROWS ? block_rows - at_row : ROWS;
                const int seen = i0 + at_row + rows;
                gather(rows, dq + first * s.d_key8, s.d_key8, ds + at_row * stride, stride, 0, seen, x.k, s.d_key8, s.d_key8);
                if (inputs)
                    gather(rows, dp + first * s.d_pos8, s.d_pos8, ds - shift + at_row * (stride + 1), stride + 1,
                           s.keys - seen, s.keys, keys.rows, s.d_pos8, s.d_pos8);
            }
            if (inputs) {
                scatter(dk, s.d_key8, ds, stride, block_rows, 0, visible, x.q + block * s.d_key8, s.d_key8, s.d_key8);
                scatter(dv, s.d_value8, a, stride, block_rows, 0, visible, grad_v + block * s.d_value8, s.d_value8, s.d_value8);
            }
            scatter(key_table, s.d_pos8, ds - shift, stride + 1, block_rows, c_begin, s.keys, x.p + block * s.d_pos8,
                    s.d_pos8, s.d_pos8);
            scatter(value_table, s.d_rel8, a - shift, stride + 1, block_rows, c_begin, s.keys, grad_r + block * s.d_rel8,
                    s.d_rel8, s.d_rel8);
        }
    }

    void attention_and_slope(const Packed& x, const Table& keys, const Table& values, const float* stats,
                             const float* grad_v, const float* grad_r, int first, int rows, int stop, float* a_rows,
                             float* ds_rows) {
        const int i = s.position(first), stride = s.tile_stride;
        score(s, x, keys, first, rows, a_rows);
        scores(rows, ds_rows, stride, grad_v + first * s.d_value8, s.d_value8, s.d_value, x.v_features, s.feature_stride,
               grad_r + first * s.d_rel8, s.d_rel8, s.d_rel, values.features + (s.keys - 1 - i), values.feature_stride,
               i + rows);
        for (int r = 0; r < rows; ++r) {
            float *row = a_rows + r * stride, *slope = ds_rows + r * stride;
            exponentiate(row, i + r, stop, stats[2 * (first + r)]);
            const Vec scale = splat(1 / stats[2 * (first + r) + 1]);
            for (int n = i + r + 1; n < stop; ++n) slope[n] = 0;
            Vec mean = {};
            for (int n = 0; n <= i + r; n += WIDTH) {
                const Vec weight = load(row + n) * scale;
                store(row + n, weight);
                mean += weight * load(slope + n);
            }
            const Vec centre = splat(sum(mean));
            for (int n = 0; n <= i + r; n += WIDTH) store(slope + n, load(row + n) * (load(slope + n) - centre));
        }
    }
};

// Which items a thread takes: contiguous and fixed, so that sums have a fixed order.
struct Share {
    int64_t begin, end;
    Share(int64_t items, int thread, int threads)
        : begin(items * thread / threads), end(items * (thread + 1) / threads) {}
};

// Sums over the batch, one copy a thread, added in the order of the threads.
struct Sums {
    int64_t size;
    std::vector<float> memory;
    Sums(int64_t numbers, int threads) : size(numbers + 2 * MARGIN), memory(threads * size, 0.0f) {}
    float* of(int thread) { return memory.data() + thread * size + MARGIN; }
    float total(int64_t index, int threads) {
        float result = 0;
        for (int thread = 0; thread < threads; ++thread) result += of(thread)[index];
        return result;
    }
    // Rows by c = keys - 1 - offset, padded, into a table gradient [head, length, depth].
    void into_table(float* to, int heads, int length, int keys, int depth, int threads) {
        for (int h = 0; h < heads; ++h)
            for (int c = 0; c < keys; ++c)
                for (int d = 0; d < depth; ++d)
                    to[(int64_t(h) * length + keys - 1 - c) * depth + d] =
                        total((int64_t(h) * keys + c) * padded(depth) + d, threads);
    }
};

std::vector<Table> pack_tables(const float* tables, int heads, int length, int keys, int depth) {
    std::vector<Table> packed(heads);
    for (int h = 0; h < heads; ++h) packed[h].pack(tables + int64_t(h) * length * depth, keys, depth);
    return packed;
}

}  // namespace

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

// The stream of one sequence, which is queries' positions, keys and values at once, and the queries of one head.
struct StreamOperands {
    const Shape& s;
    Buffer row_memory, feature_memory, q_memory, w_memory;
    float *rows, *features, *q, *w;

    explicit StreamOperands(const Shape& shape) : s(shape) {
        rows = row_memory.make(int64_t(s.keys) * s.d_key8);
        features = feature_memory.make(int64_t(s.d_key) * s.feature_stride);
        q = q_memory.make(int64_t(s.queries) * s.d_key8);
        w = w_memory.make(int64_t(s.d_key) * s.d_key8);
    }

    const float* query_rows() const { return rows + int64_t(s.keys - s.queries) * s.d_key8; }

    void pack(const float* stream) {
        pack_rows(rows, s.d_key8, stream, s.d_key, s.keys, s.d_key);
        pack_features(features, s.feature_stride, stream, s.d_key, s.keys, s.d_key);
    }

    // q = h W_A at the queries' positions.
    Packed project(const float* W_A) {
        pack_rows(w, s.d_key8, W_A, s.d_key, s.d_key, s.d_key);
        multiply(q, query_rows(), w);
        return {q, query_rows(), rows, rows, features, features};
    }

    // to[r] = from[r] M for all query rows, M [d_in][d_in padded].
    void multiply(float* to, const float* from, const float* M) const {
        for (int first = 0; first < s.queries; first += ROWS) {
            const int count = s.queries - first < ROWS ? s.queries - first : ROWS;
            gather(count, to + first * s.d_key8, s.d_key8, from + first * s.d_key8, s.d_key8, 0, s.d_key, M, s.d_key8, s.d_key8);
        }
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

void layer_forward(const Layer& l, float* out, const std::vector<Table>& keys, const std::vector<Table>& values,
                   int thread) {
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
            const Packed x = operands.project(l.W_A + int64_t(h) * l.d_in * l.d_in);
            float* head = to + l.d_in + h * d_head;
            forward.run(x, keys[h], values[h], l.stats + (b * l.heads + h) * l.queries * 2, head, d_out, head + l.d_in, d_out);
        }
    }
}

void layer_backward(const Layer& l, const LayerGradients& g, const std::vector<Table>& keys,
                    const std::vector<Table>& values, float* w_sum, float* key_sum, float* value_sum, int thread) {
    const Share share(l.batch, thread, l.threads);
    if (share.begin == share.end) return;
    const Shape s(l.queries, l.keys, l.d_in, l.d_in, l.d_in, l.d_rel);
    const int64_t d_head = l.d_in + l.d_rel, d_out = l.d_in + l.heads * d_head;
    const int d8 = s.d_key8;
    StreamOperands operands(s);
    Backward backward(s);
    Buffer memory[5];
    float* grad_v = memory[0].make(int64_t(s.queries) * s.d_value8);
    float* grad_r = memory[1].make(int64_t(s.queries) * s.d_rel8);
    float* through = memory[2].make(int64_t(s.queries) * d8);
    float* transposed = memory[3].make(int64_t(l.d_in) * d8);
    for (int64_t b = share.begin; b < share.end; ++b) {
        operands.pack(l.stream + b * l.keys * l.d_in);
        const float* from = g.out + b * l.queries * d_out;
        float* dh = memory[4].make(int64_t(s.keys) * d8);
        float* dh_queries = dh + int64_t(s.keys - s.queries) * d8;
        for (int i = 0; i < s.queries; ++i)
            for (int d = 0; d < l.d_in; ++d) dh_queries[i * d8 + d] = from[i * d_out + d];
        for (int h = 0; h < l.heads; ++h) {
            const float* W_A = l.W_A + int64_t(h) * l.d_in * l.d_in;
            const Packed x = operands.project(W_A);
            const float* head = from + l.d_in + h * d_head;
            pack_rows(grad_v, s.d_value8, head, d_out, s.queries, s.d_value);
            pack_rows(grad_r, s.d_rel8, head + l.d_in, d_out, s.queries, s.d_rel);
            backward.run(x, keys[h], values[h], l.stats + (b * l.heads + h) * l.queries * 2, grad_v, grad_r, dh, dh,
                         key_sum + int64_t(h) * s.keys * d8, value_sum + int64_t(h) * s.keys * s.d_rel8, g.stream != nullptr);
            scatter(w_sum + int64_t(h) * l.d_in * d8, d8, operands.query_rows(), d8, s.queries, 0, l.d_in, backward.dq, d8, d8);
            if (!g.stream) continue;
            for (int row = 0; row < l.d_in; ++row)
                for (int d = 0; d < l.d_in; ++d) transposed[row * d8 + d] = W_A[d * l.d_in + row];
            operands.multiply(through, backward.dq, transposed);
            for (int64_t n = 0; n < int64_t(s.queries) * d8; ++n) dh_queries[n] += through[n] + backward.dp[n];
        }
        if (g.stream) unpack_rows(g.stream + b * l.keys * l.d_in, l.d_in, dh, d8, l.keys, l.d_in);
    }
}

}  // namespace

extern "C" {

void relative_attention_forward(const Problem* problem, const Operand* out_v, const Operand* out_r) {
    const Problem& p = *problem;
    const auto keys = pack_tables(p.key_table, p.heads, p.length, p.keys, p.d_pos);
    const auto values = pack_tables(p.value_table, p.heads, p.length, p.keys, p.d_rel);
#pragma omp parallel for num_threads(p.threads) schedule(static, 1)
    for (int thread = 0; thread < p.threads; ++thread) attention_forward(p, *out_v, *out_r, keys, values, thread);
}

void relative_attention_backward(const Problem* problem, const Gradients* gradients) {
    const Problem& p = *problem;
    const auto keys = pack_tables(p.key_table, p.heads, p.length, p.keys, p.d_pos);
    const auto values = pack_tables(p.value_table, p.heads, p.length, p.keys, p.d_rel);
    Sums key_sums(int64_t(p.heads) * p.keys * padded(p.d_pos), p.threads);
    Sums value_sums(int64_t(p.heads) * p.keys * padded(p.d_rel), p.threads);
#pragma omp parallel for num_threads(p.threads) schedule(static, 1)
    for (int thread = 0; thread < p.threads; ++thread)
        attention_backward(p, *gradients, keys, values, key_sums.of(thread), value_sums.of(thread), thread);
    key_sums.into_table(gradients->key_table, p.heads, p.length, p.keys, p.d_pos, p.threads);
    value_sums.into_table(gradients->value_table, p.heads, p.length, p.keys, p.d_rel, p.threads);
}

void disentangled_layer_forward(const Layer* layer, float* out) {
    const Layer& l = *layer;
    const auto keys = pack_tables(l.R_A, l.heads, l.length, l.keys, l.d_in);
    const auto values = pack_tables(l.R_V, l.heads, l.length, l.keys, l.d_rel);
#pragma omp parallel for num_threads(l.threads) schedule(static, 1)
    for (int thread = 0; thread < l.threads; ++thread) layer_forward(l, out, keys, values, thread);
}

void disentangled_layer_backward(const Layer* layer, const LayerGradients* gradients) {
    const Layer& l = *layer;
    const auto keys = pack_tables(l.R_A, l.heads, l.length, l.keys, l.d_in);
    const auto values = pack_tables(l.R_V, l.heads, l.length, l.keys, l.d_rel);
    const int d8 = padded(l.d_in);
    Sums w_sums(int64_t(l.heads) * l.d_in * d8, l.threads);
    Sums key_sums(int64_t(l.heads) * l.keys * d8, l.threads);
    Sums value_sums(int64_t(l.heads) * l.keys * padded(l.d_rel), l.threads);
#pragma omp parallel for num_threads(l.threads) schedule(static, 1)
    for (int thread = 0; thread < l.threads; ++thread)
        layer_backward(l, *gradients, keys, values, w_sums.of(thread), key_sums.of(thread), value_sums.of(thread), thread);
    for (int row = 0; row < l.heads * l.d_in; ++row)
        for (int d = 0; d < l.d_in; ++d)
            gradients->W_A[int64_t(row) * l.d_in + d] = w_sums.total(int64_t(row) * d8 + d, l.threads);
    key_sums.into_table(gradients->R_A, l.heads, l.length, l.keys, l.d_in, l.threads);
    value_sums.into_table(gradients->R_V, l.heads, l.length, l.keys, l.d_rel, l.threads);
}

}
