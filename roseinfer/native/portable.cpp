#include "types.h"

#define ISA portable
constexpr int LANES = 4;
#include "isa.h"
