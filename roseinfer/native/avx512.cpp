#include "types.h"

#ifdef ROSE_X86
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define ISA avx512
#define PAIRS 0
constexpr int LANES = 16;
#include "isa.h"
#endif
