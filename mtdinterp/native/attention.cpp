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
inline Vec splat(float x) { return Vec{} + x; }
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

}  // namespace

extern "C" {

// Strides of one operand: elements between batches, positions and heads; features are contiguous.
struct Operand { const float* data; int64_t batch, pos, head; };
struct Result { float* data; int64_t batch, pos, head; };

struct Problem {
    int32_t batch, heads, queries, keys, length;   // length: rows of the tables
    int32_t d_key, d_pos, d_value, d_rel, threads;
    Operand q, p, k, v;
    const float *key_table, *value_table;          // [head, length, d]
    float* stats;                                  // [batch, head, query, 2]: row maximum, row sum
};

struct Gradients {
    Operand out_v, out_r;                          // gradients of the outputs
    Result q, p, k, v;
    float *key_table, *value_table;                // [head, length, d]
};
}

namespace {

inline const float* at(const Operand& x, int b, int h) { return x.data + b * x.batch + h * x.head; }
inline float* at(const Result& x, int b, int h) { return x.data + b * x.batch + h * x.head; }

// The packed operands of one sequence and head, and a tile of scores.
struct Work {
    int keys, queries, d_key8, d_pos8, d_value8, d_rel8, feature_stride, tile_stride;
    Buffer q_memory, p_memory, k_memory, kt_memory, v_memory, tile_memory;
    float *q, *p, *k, *k_features, *v, *tile;

    explicit Work(const Problem& s, int tile_rows)
        : keys(s.keys), queries(s.queries), d_key8(padded(s.d_key)), d_pos8(padded(s.d_pos)),
          d_value8(padded(s.d_value)), d_rel8(padded(s.d_rel)), feature_stride(padded(s.keys, 2 * WIDTH) + MARGIN),
          tile_stride(padded(s.keys, 2 * WIDTH) + MARGIN) {
        q = q_memory.make(int64_t(queries) * d_key8);
        p = p_memory.make(int64_t(queries) * d_pos8);
        k = k_memory.make(int64_t(keys) * d_key8);
        k_features = kt_memory.make(int64_t(s.d_key) * feature_stride);
        v = v_memory.make(int64_t(keys) * d_value8);
        tile = tile_memory.make(int64_t(tile_rows) * (tile_stride + 1));
    }

    void pack(const Problem& s, int b, int h) {
        pack_rows(q, d_key8, at(s.q, b, h), s.q.pos, queries, s.d_key);
        pack_rows(p, d_pos8, at(s.p, b, h), s.p.pos, queries, s.d_pos);
        pack_features(k_features, feature_stride, at(s.k, b, h), s.k.pos, keys, s.d_key);
        pack_rows(v, d_value8, at(s.v, b, h), s.v.pos, keys, s.d_value);
    }

    // Raw scores of `rows` queries from query row `first`; zero nothing, mask nothing.
    void score(const Problem& s, const Table& table, int first, int rows, float* to) {
        const int i = keys - queries + first;  // the first row's position
        scores(rows, to, tile_stride, q + first * d_key8, d_key8, s.d_key, k_features, feature_stride,
               p + first * d_pos8, d_pos8, s.d_pos, table.features + (keys - 1 - i), table.feature_stride, i + rows);
    }
};

// Turn row i of a tile into exp(score - maximum), zero from i + 1 to `end`.
inline void exponentiate(float* row, int i, int end, float maximum) {
    for (int n = 0; n <= i; n += WIDTH) store(row + n, exponential(load(row + n) - splat(maximum)));
    for (int n = i + 1; n < end; ++n) row[n] = 0;
}

inline float row_maximum(const float* row, int i) {
    float maximum = row[0];
    for (int n = 1; n <= i; ++n) maximum = row[n] > maximum ? row[n] : maximum;
    return maximum;
}

inline float row_sum(const float* row, int end) {
    Vec total = {};
    for (int n = 0; n < end; n += WIDTH) total += load(row + n);
    return sum(total);
}

// Which pairs (sequence, head) a thread takes: contiguous and fixed, so that sums have a fixed order.
inline void share(int64_t pairs, int thread, int threads, int64_t& begin, int64_t& end) {
    begin = pairs * thread / threads;
    end = pairs * (thread + 1) / threads;
}

void forward_share(const Problem& s, const std::vector<Table>& key_tables, const std::vector<Table>& value_tables,
                   const Result& out_v, const Result& out_r, int thread) {
    int64_t begin, end;
    share(int64_t(s.batch) * s.heads, thread, s.threads, begin, end);
    if (begin == end) return;
    Work work(s, ROWS);
    Buffer v_memory, r_memory;
    float* v_out = v_memory.make(ROWS * work.d_value8);
    float* r_out = r_memory.make(ROWS * work.d_rel8);
    for (int64_t pair = begin; pair < end; ++pair) {
        const int b = int(pair / s.heads), h = int(pair % s.heads);
        work.pack(s, b, h);
        float* stats = s.stats + pair * s.queries * 2;
        for (int first = 0; first < s.queries; first += ROWS) {
            const int rows = s.queries - first < ROWS ? s.queries - first : ROWS;
            const int i0 = s.keys - s.queries + first, visible = i0 + rows, stop = padded(visible, 2 * WIDTH);
            work.score(s, key_tables[h], first, rows, work.tile);
            for (int r = 0; r < rows; ++r) {
                float* row = work.tile + r * work.tile_stride;
                const float maximum = row_maximum(row, i0 + r);
                exponentiate(row, i0 + r, stop, maximum);
                stats[2 * (first + r)] = maximum;
                stats[2 * (first + r) + 1] = row_sum(row, stop);
            }
            gather(rows, v_out, work.d_value8, work.tile, work.tile_stride, 0, visible, work.v, work.d_value8,
                   work.d_value8);
            gather(rows, r_out, work.d_rel8, work.tile - (s.keys - 1 - i0), work.tile_stride + 1, s.keys - visible, s.keys,
                   value_tables[h].rows, work.d_rel8, work.d_rel8);
            for (int r = 0; r < rows; ++r) {
                const float scale = 1 / stats[2 * (first + r) + 1];
                float* to_v = at(out_v, b, h) + (first + r) * out_v.pos;
                float* to_r = at(out_r, b, h) + (first + r) * out_r.pos;
                for (int d = 0; d < s.d_value; ++d) to_v[d] = v_out[r * work.d_value8 + d] * scale;
                for (int d = 0; d < s.d_rel; ++d) to_r[d] = r_out[r * work.d_rel8 + d] * scale;
            }
        }
    }
}

void backward_share(const Problem& s, const Gradients& g, const std::vector<Table>& key_tables,
                    const std::vector<Table>& value_tables, float* key_sum, float* value_sum, int thread) {
    int64_t begin, end;
    share(int64_t(s.batch) * s.heads, thread, s.threads, begin, end);
    if (begin == end) return;
    Work work(s, BLOCK);
    const int stride = work.tile_stride, dk = work.d_key8, dp = work.d_pos8, dv = work.d_value8, dr = work.d_rel8;
    Buffer memory[6];
    float* ds = memory[0].make(int64_t(BLOCK) * (stride + 1));
    float* v_features = memory[1].make(int64_t(s.d_value) * work.feature_stride);
    float* gv = memory[2].make(int64_t(s.queries) * dv);
    float* gr = memory[3].make(int64_t(s.queries) * dr);
    float* dq = memory[4].make(int64_t(s.queries) * dk);
    float* dpos = memory[5].make(int64_t(s.queries) * dp);
    Buffer k_sum_memory, v_sum_memory;
    for (int64_t pair = begin; pair < end; ++pair) {
        const int b = int(pair / s.heads), h = int(pair % s.heads);
        work.pack(s, b, h);
        pack_rows(work.k, dk, at(s.k, b, h), s.k.pos, s.keys, s.d_key);
        pack_features(v_features, work.feature_stride, at(s.v, b, h), s.v.pos, s.keys, s.d_value);
        pack_rows(gv, dv, at(g.out_v, b, h), g.out_v.pos, s.queries, s.d_value);
        pack_rows(gr, dr, at(g.out_r, b, h), g.out_r.pos, s.queries, s.d_rel);
        float* k_sum = k_sum_memory.make(int64_t(s.keys) * dk);
        float* v_sum = v_sum_memory.make(int64_t(s.keys) * dv);
        float* table_k = key_sum + int64_t(h) * s.keys * dp;
        float* table_v = value_sum + int64_t(h) * s.keys * dr;
        const float* stats = s.stats + pair * s.queries * 2;
        for (int block = 0; block < s.queries; block += BLOCK) {
            const int block_rows = s.queries - block < BLOCK ? s.queries - block : BLOCK;
            const int i0 = s.keys - s.queries + block, visible = i0 + block_rows, stop = padded(visible, 2 * WIDTH);
            for (int at_row = 0; at_row < block_rows; at_row += ROWS) {
                const int first = block + at_row, rows = block_rows - at_row < ROWS ? block_rows - at_row : ROWS;
                const int i = i0 + at_row;
                float *a = work.tile + at_row * stride, *d = ds + at_row * stride;
                work.score(s, key_tables[h], first, rows, a);
                scores(rows, d, stride, gv + first * dv, dv, s.d_value, v_features, work.feature_stride,
                       gr + first * dr, dr, s.d_rel, value_tables[h].features + (s.keys - 1 - i),
                       value_tables[h].feature_stride, i + rows);
                for (int r = 0; r < rows; ++r) {
                    float *row = a + r * stride, *slope = d + r * stride;
                    exponentiate(row, i + r, stop, stats[2 * (first + r)]);
                    const Vec scale = splat(1 / stats[2 * (first + r) + 1]);
                    for (int n = i + r + 1; n < stop; ++n) slope[n] = 0;
                    Vec mean = {};
                    for (int n = 0; n <= i + r; n += WIDTH) {
                        const Vec x = load(row + n) * scale;
                        store(row + n, x);
                        mean += x * load(slope + n);
                    }
                    const Vec centre = splat(sum(mean));
                    for (int n = 0; n <= i + r; n += WIDTH)
                        store(slope + n, load(row + n) * (load(slope + n) - centre));
                    for (int n = i + r + 1; n < stop; ++n) slope[n] = 0;
                }
            }
            const int shift = s.keys - 1 - i0, c_begin = s.keys - visible;
            for (int at_row = 0; at_row < block_rows; at_row += ROWS) {
                const int first = block + at_row, rows = block_rows - at_row < ROWS ? block_rows - at_row : ROWS;
                const int seen = i0 + at_row + rows;
                gather(rows, dq + first * dk, dk, ds + at_row * stride, stride, 0, seen, work.k, dk, dk);
                gather(rows, dpos + first * dp, dp, ds - shift + at_row * (stride + 1), stride + 1, s.keys - seen, s.keys,
                       key_tables[h].rows, dp, dp);
            }
            scatter(k_sum, dk, ds, stride, block_rows, 0, visible, work.q + block * dk, dk, dk);
            scatter(v_sum, dv, work.tile, stride, block_rows, 0, visible, gv + block * dv, dv, dv);
            scatter(table_k, dp, ds - shift, stride + 1, block_rows, c_begin, s.keys, work.p + block * dp, dp, dp);
            scatter(table_v, dr, work.tile - shift, stride + 1, block_rows, c_begin, s.keys, gr + block * dr, dr, dr);
        }
        unpack_rows(at(g.q, b, h), g.q.pos, dq, dk, s.queries, s.d_key);
        unpack_rows(at(g.p, b, h), g.p.pos, dpos, dp, s.queries, s.d_pos);
        unpack_rows(at(g.k, b, h), g.k.pos, k_sum, dk, s.keys, s.d_key);
        unpack_rows(at(g.v, b, h), g.v.pos, v_sum, dv, s.keys, s.d_value);
    }
}

void pack_tables(const Problem& s, std::vector<Table>& key_tables, std::vector<Table>& value_tables) {
    for (int h = 0; h < s.heads; ++h) {
        key_tables[h].pack(s.key_table + int64_t(h) * s.length * s.d_pos, s.keys, s.d_pos);
        value_tables[h].pack(s.value_table + int64_t(h) * s.length * s.d_rel, s.keys, s.d_rel);
    }
}

// Add the threads' sums, in the order of the threads, into a table gradient [head, length, depth].
void reduce_table(float* to, const std::vector<float>& sums, int64_t size, const Problem& s, int depth) {
    const int depth8 = padded(depth);
    for (int h = 0; h < s.heads; ++h)
        for (int c = 0; c < s.keys; ++c)
            for (int d = 0; d < depth; ++d) {
                float total = 0;
                for (int thread = 0; thread < s.threads; ++thread)
                    total += sums[thread * size + MARGIN + (int64_t(h) * s.keys + c) * depth8 + d];
                to[(int64_t(h) * s.length + s.keys - 1 - c) * depth + d] = total;
            }
}

}  // namespace

extern "C" {

void relative_attention_forward(const Problem* problem, const Result* out_v, const Result* out_r) {
    const Problem& s = *problem;
    std::vector<Table> key_tables(s.heads), value_tables(s.heads);
    pack_tables(s, key_tables, value_tables);
#pragma omp parallel for num_threads(s.threads) schedule(static, 1)
    for (int thread = 0; thread < s.threads; ++thread)
        forward_share(s, key_tables, value_tables, *out_v, *out_r, thread);
}

void relative_attention_backward(const Problem* problem, const Gradients* gradients) {
    const Problem& s = *problem;
    std::vector<Table> key_tables(s.heads), value_tables(s.heads);
    pack_tables(s, key_tables, value_tables);
    const int64_t key_size = int64_t(s.heads) * s.keys * padded(s.d_pos) + 2 * MARGIN;
    const int64_t value_size = int64_t(s.heads) * s.keys * padded(s.d_rel) + 2 * MARGIN;
    std::vector<float> key_sums(s.threads * key_size), value_sums(s.threads * value_size);
#pragma omp parallel for num_threads(s.threads) schedule(static, 1)
    for (int thread = 0; thread < s.threads; ++thread)
        backward_share(s, *gradients, key_tables, value_tables, key_sums.data() + thread * key_size + MARGIN,
                       value_sums.data() + thread * value_size + MARGIN, thread);
    reduce_table(gradients->key_table, key_sums, key_size, s, s.d_pos);
    reduce_table(gradients->value_table, value_sums, value_size, s, s.d_rel);
}

}
