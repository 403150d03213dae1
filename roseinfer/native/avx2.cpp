#include "types.h"

#ifdef ROSE_X86
#pragma GCC target("arch=x86-64-v3")
#define ISA avx2
#define PAIRS 0
constexpr int LANES = 8;
#include "isa.h"
#endif
