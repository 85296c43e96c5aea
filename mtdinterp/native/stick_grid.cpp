// Moments of a likelihood over a product grid in stick fractions. With fractions v of a stick that is broken
// `sticks` times,
//
//   w_1 = v_1,  w_2 = (1 - v_1) v_2,  …,  w_m = (1 - v_1) … (1 - v_sticks),   m = sticks + 1,
//   mass = sum over the grid of  u_1 … u_sticks * prod_t sum_g w_g c[g][t]
//
// where u are the quadrature weights of the nodes. Along one fraction every factor is linear, a + b v, so the last
// axis costs one multiply-add and one multiplication per node and step, however many lags there are.
//
// The likelihood is log-concave along each axis. So each axis is walked from a start node in both directions, and a
// walk ends once the mass of a node is negligible and at most half of that before: what remains is less than that node.
// Most of a grid that is laid around a narrow peak is never evaluated.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "failure.h"

namespace {

constexpr int BLOCK = 8;         // nodes of the last axis that are evaluated together, in one vector
constexpr int CHAINS = 4;        // products at a time: a product has to wait for the one before
constexpr int RENORMALISE = 64;  // steps between two normalisations of the products
typedef double Vec __attribute__((vector_size(8 * BLOCK)));
typedef uint64_t Bits __attribute__((vector_size(8 * BLOCK)));

constexpr uint64_t MANTISSA = 0x000fffffffffffffull, ONE = 0x3ff0000000000000ull;

inline Vec load(const double* from) { Vec x; std::memcpy(&x, from, sizeof x); return x; }

// Splits positive x into a mantissa in [1, 2), which stays in x, and an exponent, which is added to `exponent`. Zero
// becomes a number so small that it adds nothing.
inline void split(Vec& x, Bits& exponent) {
    Bits bits;
    std::memcpy(&bits, &x, sizeof bits);
    exponent += (bits >> 52) - 1023;
    bits = (bits & MANTISSA) | ONE;
    std::memcpy(&x, &bits, sizeof x);
}

// What a part of the grid holds.
struct Part {
    double mass = 0;
    double peak = -1e300;  // the largest likelihood: an increasing function of its logarithm
};

class Walk {
public:
    Walk(const double* c, int64_t steps, int64_t sticks, const double* nodes, const double* weights,
         const int64_t* counts, int64_t stride, const int64_t* starts, const double* negligible, double* moments,
         double* marginals)
        : c(c), steps(steps), sticks(sticks), nodes(nodes), weights(weights), counts(counts), stride(stride),
          starts(starts), negligible(negligible), moments(moments), marginals(marginals),
          sums((sticks + 1) * steps), slopes(steps), fixed(sticks + 1) {}

    // One node of the first axis, with everything below it.
    void from(int64_t first) {
        if (sticks > 1) {
            if (first < counts[0]) below(0, first, 1.0, 1.0);
        } else if (first * BLOCK < counts[0]) {
            prepare(0, 1.0);
            block(first, 1.0, 1.0);
        }
    }

private:
    const double* c;
    const int64_t steps, sticks;
    const double *nodes, *weights;
    const int64_t* counts;
    const int64_t stride;
    const int64_t* starts;
    const double* negligible;
    double *moments, *marginals;
    std::vector<double> sums;    // [axis][step]: what the fixed weights of the axes before add to every factor
    std::vector<double> slopes;  // [step]
    std::vector<double> fixed;   // [lag]: the weights of the axes that are fixed

    double* sum_before(int64_t axis) { return sums.data() + axis * steps; }

    // Fix a node of an axis other than the last, and walk the axis after it.
    Part below(int64_t axis, int64_t node, double rest, double factor) {
        const double fraction = nodes[axis * stride + node];
        const double weight = rest * fraction;
        const double *before = sum_before(axis), *column = c + axis * steps;
        double* after = sum_before(axis + 1);
        for (int64_t t = 0; t < steps; ++t) after[t] = before[t] + weight * column[t];
        fixed[axis] = weight;
        const Part part = walk(axis + 1, rest * (1 - fraction), factor * weights[axis * stride + node]);
        marginals[axis * stride + node] += part.mass;
        return part;
    }

    // All nodes of an axis that matter.
    Part walk(int64_t axis, double rest, double factor) {
        const bool last = axis == sticks - 1;
        if (last) prepare(axis, rest);
        const int64_t size = last ? (counts[axis] + BLOCK - 1) / BLOCK : counts[axis];
        const int64_t start = last ? starts[axis] / BLOCK : starts[axis];
        const auto at = [&](int64_t place) {
            return last ? block(place, rest, factor) : below(axis, place, rest, factor);
        };
        const Part middle = at(start);
        Part all = middle;
        for (int direction = -1; direction <= 1; direction += 2) {
            Part before = middle;
            for (int64_t place = start + direction; place >= 0 && place < size; place += direction) {
                const Part here = at(place);
                all.mass += here.mass;
                if (here.peak > all.peak) all.peak = here.peak;
                const bool falls = here.peak <= before.peak && 2 * here.mass <= before.mass;
                if (falls && here.mass < negligible[axis]) break;
                before = here;
            }
        }
        return all;
    }

    // On the last axis, the factor of step t is sums + slopes * fraction.
    void prepare(int64_t axis, double rest) {
        const double *before = sum_before(axis), *next = c + axis * steps, *final = c + (axis + 1) * steps;
        double* after = sum_before(axis + 1);
        for (int64_t t = 0; t < steps; ++t) {
            after[t] = before[t] + rest * final[t];
            slopes[t] = rest * (next[t] - final[t]);
        }
    }

    // A block of nodes of the last axis.
    Part block(int64_t place, double rest, double factor) {
        const int64_t axis = sticks - 1, from = axis * stride + place * BLOCK;
        const Vec fractions = load(nodes + from);
        const double *constant = sum_before(axis + 1), *slope = slopes.data();
        Vec product = Vec{} + 1.0;
        Bits exponents = {};
        for (int64_t begin = 0; begin < steps; begin += RENORMALISE) {
            const int64_t end = begin + RENORMALISE < steps ? begin + RENORMALISE : steps;
            Vec chains[CHAINS];
            for (Vec& chain : chains) chain = Vec{} + 1.0;
            int64_t t = begin;
            for (; t + CHAINS <= end; t += CHAINS)
                for (int k = 0; k < CHAINS; ++k) chains[k] *= constant[t + k] + slope[t + k] * fractions;
            for (; t < end; ++t) chains[0] *= constant[t] + slope[t] * fractions;
            // Each is split alone, so that no product underflows because of another.
            for (Vec& chain : chains) {
                split(chain, exponents);
                product *= chain;
            }
            split(product, exponents);
        }
        Part part;
        double by_fraction = 0;
        for (int lane = 0; lane < BLOCK && place * BLOCK + lane < counts[axis]; ++lane) {
            const double exponent = double(int64_t(exponents[lane]));
            const double peak = exponent + product[lane];
            if (peak > part.peak) part.peak = peak;
            const double clipped = exponent < -2000 ? -2000 : exponent > 2000 ? 2000 : exponent;
            const double mass = std::ldexp(product[lane] * factor * weights[from + lane], int(clipped));
            part.mass += mass;
            by_fraction += mass * nodes[from + lane];
            marginals[from + lane] += mass;
        }
        moments[0] += part.mass;
        for (int64_t lag = 0; lag < axis; ++lag) moments[1 + lag] += part.mass * fixed[lag];
        moments[1 + axis] += rest * by_fraction;
        moments[2 + axis] += rest * (part.mass - by_fraction);
        return part;
    }
};

}  // namespace

// moments[b][first][1 + lag] and marginals[b][first][stick][node] by nodes of the first axis (blocks of nodes if it is
// the only one): they are filled by different threads, and the caller adds them up in one order.
extern "C" int32_t stick_grid_moments(double* moments, double* marginals, const double* c, const double* nodes,
                                      const double* weights, const int64_t* counts, const int64_t* starts,
                                      const double* negligible, int64_t batch, int64_t steps, int64_t sticks,
                                      int64_t stride, int64_t parts, int64_t threads) {
    Failures failures;
    const int64_t lags = sticks + 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < batch * parts; ++task) {
        const int64_t b = task / parts, first = task % parts;
        failures.guard([&] {
            Walk walk(c + b * lags * steps, steps, sticks, nodes + b * sticks * stride, weights + b * sticks * stride,
                      counts + b * sticks, stride, starts + b * sticks, negligible + b * sticks, moments + task * (1 + lags),
                      marginals + task * sticks * stride);
            walk.from(first);
        });
    }
    return failures.code;
}
