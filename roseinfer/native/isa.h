// All of the decoder, in namespace ISA, with vectors of LANES floats. Whoever includes this has set
// both, X86_LANES (LANES where there are intrinsics for it, else 0) and the target, and whether that
// multiplies pairs of bfloat16 (PAIRS) and fours of bytes (VNNI); types.h came before, so that no
// header of others is built for it.

namespace rose {
namespace ISA {

#include "simd.h"
#include "layers.h"
#include "tiles.h"
#include "runs.h"
#include "gemm.h"
#include "quantized.h"
#include "quantized_tiles.h"
#include "matmul.h"
#include "attention.h"
#include "experts.h"
#include "recurrence.h"
#include "states.h"
#include "scratch.h"
#include "latents.h"
#include "decoder.h"
#include "sampling.h"

}  // namespace ISA
}  // namespace rose
