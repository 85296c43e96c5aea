// What a kernel returns to Python: no exception may leave a parallel region or a C function.

#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <stdexcept>

namespace {

enum Failure : int32_t { NONE = 0, OUT_OF_MEMORY = 1, OUT_OF_RANGE = 2 };

// The failure of a kernel, from whichever thread it came.
struct Failures {
    std::atomic<int32_t> code{NONE};
    template <class Work>
    void guard(const Work& work) {
        try {
            work();
        } catch (const std::out_of_range&) {
            code = OUT_OF_RANGE;
        } catch (const std::exception&) {
            code = OUT_OF_MEMORY;  // nothing else is thrown: std::bad_alloc, or std::length_error of a vector
        }
    }
};

}  // namespace
