#include "placement.h"
#include "types.h"

#ifdef ROSE_X86_GCC_11
// What this header calls undefined is uninitialized on purpose; GCC warns wherever it is inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#pragma GCC target("arch=x86-64-v3,avxvnni")
#define ISA avx_vnni
#define PAIRS 0
#define VNNI 1
#define X86_LANES 8
constexpr int LANES = 8;
#include "isa.h"
#endif
