// Relative attention of one sequence and head, forward and backward.
//
//   score[i, j] = q_i . k_j + p_i . key_table[i - j],   A = softmax over j <= i,
//   out_v[i] = sum_j A[i, j] v_j,   out_r[i] = sum_j A[i, j] value_table[i - j].
//
// Scores live in a tile of a few rows that stays in the cache. The backward pass recomputes it from the row maxima
// and sums that the forward pass noted; where both passes of a sequence follow each other, the forward pass may
// keep all rows instead.
//
// Tables are held by c = K - 1 - offset. Then A[i, j] stands at c = j + (K - 1 - i), so a tile read with its
// row stride plus one, from the right place, is the same attention by offset: no element is moved.

#pragma once

#include "tile.h"

namespace {

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
          feature_stride(padded(keys, 2 * WIDTH) + MARGIN), tile_stride(padded(keys, 2 * WIDTH) + 2 * WIDTH) {}
    int position(int query) const { return keys - queries + query; }
};

struct Packed { const float *q, *p, *k, *v, *k_features, *v_features; };

// Raw scores of `rows` queries from `first` on.
void score(const Shape& s, const Packed& x, const Table& table, int first, int rows, float* to) {
    const int i = s.position(first);
    scores(rows, to, s.tile_stride, x.q + first * s.d_key8, s.d_key8, s.d_key, x.k_features, s.feature_stride,
           x.p + first * s.d_pos8, s.d_pos8, s.d_pos, table.features + (s.keys - 1 - i), table.feature_stride, i + rows);
}

// A score that no key can have: its exponential is zero.
constexpr float MASKED = -INFINITY;

// Hide the keys after each row's own position, up to `stop`. Row r of a tile stands at position i + r.
inline void mask_future(float* tile, int stride, int rows, int i, int stop) {
    for (int r = 0; r < rows; ++r) replace_after(tile + r * stride, i + r, stop, MASKED);
}

// The rows go side by side in the loops below: one row alone is a chain of instructions that wait for each other.

// The largest score of each row. A NaN may be passed over here: the row's sum finds it again.
template <int R>
void row_maxima(const float* tile, int stride, int stop, float* maxima) {
    Vec best[R];
    UNROLL for (int r = 0; r < R; ++r) best[r] = load(tile + r * stride);
    for (int n = WIDTH; n < stop; n += WIDTH)
        UNROLL for (int r = 0; r < R; ++r) {
            const Vec x = load(tile + r * stride + n);
            best[r] = x > best[r] ? x : best[r];
        }
    UNROLL for (int r = 0; r < R; ++r) {
        maxima[r] = best[r][0];
        for (int lane = 1; lane < WIDTH; ++lane) maxima[r] = best[r][lane] > maxima[r] ? best[r][lane] : maxima[r];
    }
}

// Turn rows into exp(score - maximum), and give their sums.
template <int R>
void exponentiate(float* tile, int stride, int stop, const float* maxima, float* sums) {
    Vec total[R];
    UNROLL for (int r = 0; r < R; ++r) total[r] = splat(0);
    for (int n = 0; n < stop; n += WIDTH)
        UNROLL for (int r = 0; r < R; ++r) {
            const Vec x = exponential(load(tile + r * stride + n) - splat(maxima[r]));
            store(tile + r * stride + n, x);
            total[r] += x;
        }
    UNROLL for (int r = 0; r < R; ++r) sums[r] = sum(total[r]);
}

// From exponentials and the gradients that reach the attention: A = e / sum, dS = A (dA - sum_j A dA), in place.
template <int R>
void attention_slopes(float* a, float* ds, int stride, int stop, const float* sums) {
    Vec mean[R], scale[R];
    UNROLL for (int r = 0; r < R; ++r) mean[r] = splat(0), scale[r] = splat(1 / sums[r]);
    for (int n = 0; n < stop; n += WIDTH)
        UNROLL for (int r = 0; r < R; ++r) {
            const Vec weight = load(a + r * stride + n) * scale[r];
            store(a + r * stride + n, weight);
            mean[r] += weight * load(ds + r * stride + n);
        }
    Vec centre[R];
    UNROLL for (int r = 0; r < R; ++r) centre[r] = splat(sum(mean[r]));
    for (int n = 0; n < stop; n += WIDTH)
        UNROLL for (int r = 0; r < R; ++r)
            store(ds + r * stride + n, load(a + r * stride + n) * (load(ds + r * stride + n) - centre[r]));
}

// Full tiles take all their rows at once, the last ones of a sequence one by one.
inline void softmax_rows(float* tile, int stride, int rows, int i, int stop, float* maxima, float* sums, bool known) {
    mask_future(tile, stride, rows, i, stop);
    if (rows == ROWS) {
        if (!known) row_maxima<ROWS>(tile, stride, stop, maxima);
        exponentiate<ROWS>(tile, stride, stop, maxima, sums);
    } else {
        for (int r = 0; r < rows; ++r) {
            if (!known) row_maxima<1>(tile + r * stride, stride, stop, maxima + r);
            exponentiate<1>(tile + r * stride, stride, stop, maxima + r, sums + r);
        }
    }
}

// Attention of one sequence and head. `stats` notes each row's maximum and sum; outputs go to strided rows. With
// `kept`, rows of exponentials [query][tile_stride] stay there for the backward pass.
struct Forward {
    const Shape& s;
    Buffer tile_memory, v_memory, r_memory;
    float *own_tile, *v_rows, *r_rows;

    explicit Forward(const Shape& shape) : s(shape) {
        own_tile = tile_memory.make(int64_t(ROWS) * (s.tile_stride + 1));
        v_rows = v_memory.make(ROWS * s.d_value8);
        r_rows = r_memory.make(ROWS * s.d_rel8);
    }

    void run(const Packed& x, const Table& keys, const Table& values, float* stats, float* out_v, int64_t v_step,
             float* out_r, int64_t r_step, float* kept = nullptr) {
        for (int first = 0; first < s.queries; first += ROWS) {
            float* const tile = kept ? kept + int64_t(first) * s.tile_stride : own_tile;
            const int rows = s.queries - first < ROWS ? s.queries - first : ROWS;
            const int i0 = s.position(first), visible = i0 + rows, stop = padded(visible, 2 * WIDTH);
            score(s, x, keys, first, rows, tile);
            float maxima[ROWS], sums[ROWS];
            softmax_rows(tile, s.tile_stride, rows, i0, stop, maxima, sums, false);
            for (int r = 0; r < rows; ++r) {
                stats[2 * (first + r)] = maxima[r];
                stats[2 * (first + r) + 1] = sums[r];
            }
            gather(rows, v_rows, s.d_value8, tile, s.tile_stride, 0, visible, x.v, s.d_value8, s.d_value8);
            gather(rows, r_rows, s.d_rel8, tile - (s.keys - 1 - i0), s.tile_stride + 1, s.keys - visible, s.keys,
                   values.rows, s.d_rel8, s.d_rel8);
            for (int r = 0; r < rows; ++r) {
                const float scale = 1 / stats[2 * (first + r) + 1];
                float *to_v = out_v + (first + r) * v_step, *to_r = out_r + (first + r) * r_step;
                scale_row(to_v, v_rows + r * s.d_value8, s.d_value, scale);
                scale_row(to_r, r_rows + r * s.d_rel8, s.d_rel, scale);
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
    float *own_a, *ds, *dq, *dp;

    explicit Backward(const Shape& shape) : s(shape) {
        own_a = a_memory.make(int64_t(BLOCK) * (s.tile_stride + 1));
        ds = ds_memory.make(int64_t(BLOCK) * (s.tile_stride + 1));
        dq = q_memory.make(int64_t(s.queries) * s.d_key8);
        dp = p_memory.make(int64_t(s.queries) * s.d_pos8);
    }

    void run(const Packed& x, const Table& keys, const Table& values, const float* stats, const float* grad_v,
             const float* grad_r, float* dk, float* dv, float* key_table, float* value_table, bool inputs,
             float* kept = nullptr) {
        const int stride = s.tile_stride;
        for (int block = 0; block < s.queries; block += BLOCK) {
            const int block_rows = s.queries - block < BLOCK ? s.queries - block : BLOCK;
            const int i0 = s.position(block), visible = i0 + block_rows, stop = padded(visible, 2 * WIDTH);
            float* const a = kept ? kept + int64_t(block) * stride : own_a;
            for (int at_row = 0; at_row < block_rows; at_row += ROWS) {
                const int rows = block_rows - at_row < ROWS ? block_rows - at_row : ROWS;
                attention_and_slope(x, keys, values, stats, grad_v, grad_r, block + at_row, rows, stop, a + at_row * stride,
                                    ds + at_row * stride, kept != nullptr);
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
                const Corner unseen = {Corner::RISING, i0};
                scatter(dk, s.d_key8, ds, stride, block_rows, 0, visible, x.q + block * s.d_key8, s.d_key8, s.d_key8, unseen);
                scatter(dv, s.d_value8, a, stride, block_rows, 0, visible, grad_v + block * s.d_value8, s.d_value8,
                        s.d_value8, unseen);
            }
            const Corner too_far = {Corner::FALLING, shift};
            scatter(key_table, s.d_pos8, ds - shift, stride + 1, block_rows, c_begin, s.keys, x.p + block * s.d_pos8,
                    s.d_pos8, s.d_pos8, too_far);
            scatter(value_table, s.d_rel8, a - shift, stride + 1, block_rows, c_begin, s.keys, grad_r + block * s.d_rel8,
                    s.d_rel8, s.d_rel8, too_far);
        }
    }

    void attention_and_slope(const Packed& x, const Table& keys, const Table& values, const float* stats,
                             const float* grad_v, const float* grad_r, int first, int rows, int stop, float* a_rows,
                             float* ds_rows, bool kept) {
        const int i = s.position(first), stride = s.tile_stride;
        if (!kept) score(s, x, keys, first, rows, a_rows);
        scores(rows, ds_rows, stride, grad_v + first * s.d_value8, s.d_value8, s.d_value, x.v_features, s.feature_stride,
               grad_r + first * s.d_rel8, s.d_rel8, s.d_rel, values.features + (s.keys - 1 - i), values.feature_stride,
               i + rows);
        for (int r = 0; r < rows; ++r) replace_after(ds_rows + r * stride, i + r, stop, 0);
        float maxima[ROWS], sums[ROWS], again[ROWS];
        for (int r = 0; r < rows; ++r) {
            maxima[r] = stats[2 * (first + r)];
            sums[r] = stats[2 * (first + r) + 1];
        }
        if (!kept) softmax_rows(a_rows, stride, rows, i, stop, maxima, again, true);
        if (rows == ROWS)
            attention_slopes<ROWS>(a_rows, ds_rows, stride, stop, sums);
        else
            for (int r = 0; r < rows; ++r)
                attention_slopes<1>(a_rows + r * stride, ds_rows + r * stride, stride, stop, sums + r);
    }
};

// A matrix by padded rows, and its transpose.
struct Matrix {
    int rows = 0, columns = 0, stride = 0, t_stride = 0;
    Buffer memory, t_memory;
    float *data = nullptr, *transposed = nullptr;
    void pack(const float* from, int n_rows, int n_columns) {
        rows = n_rows, columns = n_columns, stride = padded(columns), t_stride = padded(rows);
        data = memory.make(int64_t(rows) * stride);
        transposed = t_memory.make(int64_t(columns) * t_stride);
        pack_rows(data, stride, from, columns, rows, columns);
        for (int row = 0; row < rows; ++row)
            for (int column = 0; column < columns; ++column) transposed[column * t_stride + row] = from[row * columns + column];
    }
};

std::vector<Matrix> pack_matrices(const float* from, int count, int rows, int columns) {
    std::vector<Matrix> packed(count);
    for (int h = 0; h < count; ++h) packed[h].pack(from + int64_t(h) * rows * columns, rows, columns);
    return packed;
}

// to[r] = from[r] M for n rows; `depth` is the number of rows of M.
void multiply(float* to, int to_stride, const float* from, int from_stride, int n, const float* M, int m_stride, int depth) {
    for (int first = 0; first < n; first += ROWS) {
        const int rows = n - first < ROWS ? n - first : ROWS;
        gather(rows, to + int64_t(first) * to_stride, to_stride, from + int64_t(first) * from_stride, from_stride, 0, depth,
               M, m_stride, m_stride);
    }
}

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
    // Padded rows from `at` on, into a matrix.
    void into_matrix(float* to, int64_t at, int rows, int columns, int threads) {
        for (int64_t row = 0; row < rows; ++row)
            for (int d = 0; d < columns; ++d) to[row * columns + d] = total(at + row * padded(columns) + d, threads);
    }
    // Padded rows by c = keys - 1 - offset from `at` on, into a table gradient [head, length, depth].
    void into_table(float* to, int64_t at, int heads, int length, int keys, int depth, int threads) {
        for (int h = 0; h < heads; ++h)
            for (int c = 0; c < keys; ++c)
                for (int d = 0; d < depth; ++d)
                    to[(int64_t(h) * length + keys - 1 - c) * depth + d] =
                        total(at + (int64_t(h) * keys + c) * padded(depth) + d, threads);
    }
};

std::vector<Table> pack_tables(const float* tables, int heads, int length, int keys, int depth) {
    std::vector<Table> packed(heads);
    for (int h = 0; h < heads; ++h) packed[h].pack(tables + int64_t(h) * length * depth, keys, depth);
    return packed;
}

}  // namespace
