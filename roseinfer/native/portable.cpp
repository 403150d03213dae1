#include "placement.h"
#include "types.h"

#define ISA portable
#define PAIRS 0
#define VNNI 0
#define X86_LANES 0
constexpr int LANES = 4;
#include "isa.h"
