#include "placement.h"
#include "types.h"

#ifdef ROSE_X86_GCC_11
// What this header calls undefined is uninitialized on purpose; GCC warns wherever it is inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#pragma GCC target("arch=x86-64-v4,avx512bf16,avx512vnni,amx-tile,amx-bf16,amx-int8,prefer-vector-width=512")
#define ISA avx512_bf16
#define PAIRS 1
#define VNNI 1
#define X86_LANES 16
constexpr int LANES = 16;
#include "isa.h"

namespace rose::avx512_bf16 {
void use_tiles(bool use) { tiles = use; }
}
#endif
