#include "placement.h"
#include "types.h"

#ifdef ROSE_X86
// What this header calls undefined is uninitialized on purpose; GCC warns wherever it is inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#pragma GCC target("arch=x86-64-v4,avx512vnni,prefer-vector-width=512")
#define ISA avx512_vnni
#define PAIRS 0
#define VNNI 1
#define X86_LANES 16
constexpr int LANES = 16;
#include "isa.h"
#endif
