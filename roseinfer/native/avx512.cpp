#include "types.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define ISA avx512
constexpr int LANES = 16;
#include "isa.h"
#endif
