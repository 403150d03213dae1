// What stands in for AVX-VNNI's two instructions in the library that tests compile, so that the build with
// them runs on processors without. After Intel's Software Developer's Manual, volume 2.

#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 11
#include <cstdint>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace instead_of_avx_vnni {

// Four unsigned bytes times four signed ones.
__attribute__((target("avx2"), unused)) static __m256i dpbusd(__m256i sums, __m256i a, __m256i b) {
    alignas(32) std::int32_t sum[8];
    alignas(32) std::uint8_t left[32];
    alignas(32) std::int8_t right[32];
    _mm256_store_si256(reinterpret_cast<__m256i *>(sum), sums);
    _mm256_store_si256(reinterpret_cast<__m256i *>(left), a);
    _mm256_store_si256(reinterpret_cast<__m256i *>(right), b);
    for (int i = 0; i < 32; ++i) sum[i / 4] += left[i] * right[i];
    return _mm256_load_si256(reinterpret_cast<const __m256i *>(sum));
}

// Two signed numbers of 16 bits times two others.
__attribute__((target("avx2"), unused)) static __m256i dpwssd(__m256i sums, __m256i a, __m256i b) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}

}  // namespace instead_of_avx_vnni

#define _mm256_dpbusd_avx_epi32 instead_of_avx_vnni::dpbusd
#define _mm256_dpwssd_avx_epi32 instead_of_avx_vnni::dpwssd
#endif
