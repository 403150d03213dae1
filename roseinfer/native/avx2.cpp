#include "types.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("arch=x86-64-v3")
#define ISA avx2
constexpr int LANES = 8;
#include "isa.h"
#endif
