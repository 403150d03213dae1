// One row reads several runs of panels side by side, where the processor gains by it.

#if X86_LANES == 16
static bool is_zen_5() {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") && __get_cpuid(1, &a, &b, &c, &d) &&
           (a >> 8 & 15) + (a >> 20 & 255) == 26;
}
const bool IS_ZEN_5 = is_zen_5();
const bool IS_INTEL = (__builtin_cpu_init(), __builtin_cpu_is("intel"));
#else
constexpr bool IS_ZEN_5 = false, IS_INTEL = false;
#endif

// Whether one row reads runs of panels. With AVX-512 Intel's processors were not measured. On a Zen 5
// weights of 16 and 32 bits take 0.88 to 0.94 of the time of two panels side by side, on a Zen 4 0.92.
// Quantized ones are compared with a panel that is prefetched: those of 4 bits take 0.90 to 1 of its
// time on a Zen 5, 1.08 on a Zen 4.
INLINE bool reads_runs_of_floats() { return LANES == 8 || !IS_INTEL; }
INLINE bool reads_quantized_runs() { return LANES == 8 || IS_ZEN_5; }

// One row times panels [first, end): P runs of them side by side. The processor fetches ahead in each
// run, as far as it is long, and several keep more requests under way than one does: on a Zen 3 two
// threads read 18 GB/s from a run each, 24 from four. `add` adds to the sums of P panels that lie `run`
// apart what the row and panel `p` make, and those behind it.
template <int P, class Add>
static void multiply_runs(const Matrix &m, std::int64_t first, std::int64_t end, Rows c, Store mode,
                          Add add) {
    const std::int64_t run = (end - first) / P;
    for (std::int64_t p = first; p < first + run; ++p) {
        Accumulators<1, P> sums = {};
        add(sums, p, run);
#pragma GCC unroll 4
        for (int i = 0; i < P; ++i) {
            Accumulators<1, 1> panel;
#pragma GCC unroll 4
            for (int v = 0; v < PANEL_VECTORS; ++v)
                panel.of[0][v] = sums.of[0][i * PANEL_VECTORS + v];
            store_tile<1, 1>(m, panel, (p + i * run) * PANEL_WIDTH, c, mode);
        }
    }
    if constexpr (P > 1) multiply_runs<P / 2>(m, first + P * run, end, c, mode, add);
}
