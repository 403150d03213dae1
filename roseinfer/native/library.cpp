// What library.py calls. The fastest build that this processor runs is chosen once.

#include "check.h"
#include "layout.h"
#include "placement.h"
#include "types.h"

#ifdef ROSE_X86_GCC_11
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define DECLARE(isa)                                                                         \
    namespace rose::isa {                                                                    \
    std::int64_t scratch(const Model &, std::int64_t rows, std::int64_t longest,             \
                         std::int64_t threads);                                              \
    void decode(const Model &, const Step &);                                                \
    void prepare(const Matrix &, float *a, std::int64_t stride, std::int64_t rows,           \
                 float *packed);                                                             \
    void multiply(const Matrix &, float *a, std::int64_t stride, std::int64_t rows,          \
                  float *packed, float *c);                                                  \
    void sample(const SampleRequest *, std::int64_t rows, std::int64_t vocabulary,           \
                float *weights, std::int64_t *ids, std::int64_t threads);                    \
    void recur(const Recurrence &);                                                          \
    }

DECLARE(portable)
DECLARE(avx2)
DECLARE(avx_vnni)
DECLARE(avx512)
DECLARE(avx512_vnni)
DECLARE(avx512_bf16)

namespace rose::avx512_bf16 {
void use_tiles(bool use);
}

// A library for one processor is compiled without the others' builds.
#if defined(ROSE_X86_GCC_11) && !defined(ROSE_WITHOUT_AVX512_BF16)
#define HAS_AVX512_BF16
#endif
#if defined(ROSE_X86_GCC_11) && !defined(ROSE_WITHOUT_AVX_VNNI)
#define HAS_AVX_VNNI
#endif
#if defined(ROSE_X86) && !defined(ROSE_WITHOUT_AVX512_VNNI)
#define HAS_AVX512_VNNI
#endif
#if defined(ROSE_X86) && !defined(ROSE_WITHOUT_AVX512)
#define HAS_AVX512
#endif
#if defined(ROSE_X86) && !defined(ROSE_WITHOUT_AVX2)
#define HAS_AVX2
#endif

namespace {

using namespace rose;

struct Build {
    const char *name;
    decltype(&portable::scratch) scratch;
    decltype(&portable::decode) decode;
    decltype(&portable::prepare) prepare;
    decltype(&portable::multiply) multiply;
    decltype(&portable::sample) sample;
    decltype(&portable::recur) recur;
    bool tiles;
    bool (*runs)();  // on this processor
    bool (*pays)();  // there, beside the builds behind it
};

#ifdef ROSE_X86
[[maybe_unused]] bool has_avx2() { return __builtin_cpu_supports("x86-64-v3"); }
[[maybe_unused]] bool has_avx512() { return __builtin_cpu_supports("x86-64-v4"); }
[[maybe_unused]] bool has_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#endif

#ifdef HAS_AVX_VNNI
// As Intel's processors for desktops have it, without AVX-512.
bool has_avx_vnni() {
    unsigned a, b, c, d;
    constexpr unsigned avx_vnni = 1u << 4;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & avx_vnni;
}
#endif

#ifdef HAS_AVX512_BF16
bool has_pairs() { return has_vnni() && __builtin_cpu_supports("avx512bf16"); }

// Whether there are tiles, and the kernel lets this process keep their 8 KiB for each thread.
bool has_tiles() {
    unsigned a, b, c, d;
    constexpr unsigned bfloats = 1u << 22, all = 1u << 24, bytes = 1u << 25;
    if (!has_pairs() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return d & bfloats && d & all && d & bytes && syscall(SYS_arch_prctl, request, tile_data) == 0;
}

// Intel's cores multiply pairs of bfloat16 so slowly that widened weights are faster. Measured on
// Emerald Rapids: 32 prompts take 0.61, 32 rows that decode 0.68 and one row 1.05 of the time.
bool pairs_pay() { return !__builtin_cpu_is("intel"); }
#endif

[[maybe_unused]] bool always() { return true; }

#define FUNCTIONS(isa) isa::scratch, isa::decode, isa::prepare, isa::multiply, isa::sample, isa::recur

const Build builds[] = {
#ifdef HAS_AVX512_BF16
    {"amx", FUNCTIONS(avx512_bf16), true, has_tiles, always},
    {"avx512_bf16", FUNCTIONS(avx512_bf16), false, has_pairs, pairs_pay},
#endif
#ifdef HAS_AVX512_VNNI
    {"avx512_vnni", FUNCTIONS(avx512_vnni), false, has_vnni, always},
#endif
#ifdef HAS_AVX512
    {"avx512", FUNCTIONS(avx512), false, has_avx512, always},
#endif
#ifdef HAS_AVX_VNNI
    {"avx_vnni", FUNCTIONS(avx_vnni), false, has_avx_vnni, always},
#endif
#ifdef HAS_AVX2
    {"avx2", FUNCTIONS(avx2), false, has_avx2, always},
#endif
#ifndef ROSE_WITHOUT_PORTABLE
    {"portable", FUNCTIONS(portable), false, always, always},
#endif
};
constexpr int count = sizeof builds / sizeof *builds;

int chosen;

void choose(int build) {
    chosen = build;
#ifdef HAS_AVX512_BF16
    avx512_bf16::use_tiles(builds[build].tiles);
#endif
}

int first_that_pays() {
#ifdef ROSE_X86
    __builtin_cpu_init();
#endif
    int build = 0;
    while (build < count - 1 && (!builds[build].runs() || !builds[build].pays())) ++build;
    return build;
}

const bool started = (choose(first_that_pays()), true);

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Every field that library.py repeats, and the size of every structure.
EXPORT const Field *rose_layout(std::int64_t *fields) {
    *fields = sizeof layout / sizeof *layout;
    return layout;
}

// The build in use; builds are numbered from the widest vectors to the narrowest.
EXPORT const char *rose_build() { return builds[chosen].name; }

// Takes another build; false if there is none or this processor lacks it.
EXPORT int rose_choose(int build) {
    if (build < 0 || build >= count || !builds[build].runs()) return 0;
    choose(build);
    return 1;
}

#ifdef ROSE_TEST_HOOKS
// Takes a build that this processor may lack: for tests that emulate what it lacks.
EXPORT void rose_force(int build) { choose(build); }

// Lets this thread settle beside others on `processors` [others]; returns where it then is.
EXPORT int rose_settle(int *processors, int others) {
    Placement placement(others + 1);
    for (int i = 0; i < others; ++i) placement.place(i, processors[i]);
    placement.settle(others);
    return placement.processor_of(others);
}
#endif

EXPORT int rose_builds() { return count; }

EXPORT int rose_current() { return chosen; }

EXPORT std::int64_t rose_scratch(const Model *m, std::int64_t rows, std::int64_t longest,
                                 std::int64_t threads) {
    return builds[chosen].scratch(*m, rows, longest, threads);
}

// A Fault; the step was computed only if it is none.
EXPORT int rose_decode(const Model *m, const Step *step) {
    const Fault fault = check(*m, *step);
    if (fault == NONE) builds[chosen].decode(*m, *step);
    return fault;
}

// Brings a [rows, inputs], which is used up, to the form that products with the matrix read; its rows lie
// `stride` floats apart. `packed` has room for as many floats as `a` has, its rows rounded up to 16.
EXPORT void rose_prepare(const Matrix *m, float *a, std::int64_t stride, std::int64_t rows,
                         float *packed) {
    builds[chosen].prepare(*m, a, stride, rows, packed);
}

// c [rows, outputs] = a [rows, inputs], which was prepared, times the matrix.
EXPORT void rose_multiply(const Matrix *m, float *a, std::int64_t stride, std::int64_t rows,
                          float *packed, float *c) {
    builds[chosen].multiply(*m, a, stride, rows, packed, c);
}

// The ids of `rows` tokens, see sampling.h for `weights`.
EXPORT void rose_sample(const SampleRequest *requests, std::int64_t rows, std::int64_t vocabulary,
                        float *weights, std::int64_t *ids, std::int64_t threads) {
    builds[chosen].sample(requests, rows, vocabulary, weights, ids, threads);
}

// One layer's recurrence; Python has looked at its shapes.
EXPORT void rose_recur(const Recurrence *recurrence) { builds[chosen].recur(*recurrence); }
