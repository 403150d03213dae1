#include "types.h"

#define ISA portable
#define PAIRS 0
constexpr int LANES = 4;
#include "isa.h"
