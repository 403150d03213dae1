// What library.py calls. The widest vectors that this processor has are chosen once.

#include "types.h"

#define DECLARE(isa)                                                                    \
    namespace rose::isa {                                                               \
    std::int64_t scratch(const Model &, std::int64_t rows, std::int64_t longest);        \
    void decode(const Model &, const Step &);                                            \
    void multiply(const Matrix &, float *a, std::int64_t rows, float *c);                \
    }

DECLARE(portable)
DECLARE(avx2)
DECLARE(avx512)
DECLARE(avx512_bf16)

namespace {

using namespace rose;

struct Build {
    const char *name;
    decltype(&portable::scratch) scratch;
    decltype(&portable::decode) decode;
    decltype(&portable::multiply) multiply;
};

const Build builds[] = {
#ifdef ROSE_X86
    {"avx512_bf16", avx512_bf16::scratch, avx512_bf16::decode, avx512_bf16::multiply},
    {"avx512", avx512::scratch, avx512::decode, avx512::multiply},
    {"avx2", avx2::scratch, avx2::decode, avx2::multiply},
#endif
    {"portable", portable::scratch, portable::decode, portable::multiply},
};
constexpr int count = sizeof builds / sizeof *builds;

bool can_run(int build) {
#ifdef ROSE_X86
    __builtin_cpu_init();
    const bool wide = __builtin_cpu_supports("x86-64-v4");
    if (build == 0) return wide && __builtin_cpu_supports("avx512bf16");
    if (build == 1) return wide;
    if (build == 2) return __builtin_cpu_supports("x86-64-v3");
#endif
    return build < count;
}

int first_that_runs() {
    int build = 0;
    while (!can_run(build)) ++build;
    return build;
}

int chosen = first_that_runs();

}  // namespace

extern "C" {

// The build in use; builds are numbered from the widest vectors to the narrowest.
const char *rose_build() { return builds[chosen].name; }

// Takes another build, for tests; false if there is none or this processor lacks it.
int rose_choose(int build) {
    if (build < 0 || build >= count || !can_run(build)) return 0;
    chosen = build;
    return 1;
}

int rose_builds() { return count; }

int rose_current() { return chosen; }

std::int64_t rose_scratch(const Model *m, std::int64_t rows, std::int64_t longest) {
    return builds[chosen].scratch(*m, rows, longest);
}

void rose_decode(const Model *m, const Step *step) { builds[chosen].decode(*m, *step); }

// `a` is used up.
void rose_multiply(const Matrix *m, float *a, std::int64_t rows, float *c) {
    builds[chosen].multiply(*m, a, rows, c);
}

}  // extern "C"
