#include "placement.h"

#ifdef __linux__
#include <sched.h>
#endif

namespace rose {

Placement::Placement(int threads) : threads(threads < MAX_THREADS ? threads : MAX_THREADS) {
    for (int i = 0; i < this->threads; ++i) place(i, UNKNOWN);
}

bool Placement::is_taken(int processor, int thread) const {
    for (int other = 0; other < threads; ++other)
        if (other != thread && processor_of(other) == processor) return true;
    return false;
}

#ifdef __linux__
void Placement::settle(int thread) {
    if (thread >= threads) return;
    const int processor = sched_getcpu();
    if (processor == processor_of(thread)) return;
    place(thread, processor);
    if (is_taken(processor, thread)) move(thread);
}

void Placement::move(int thread) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
        if (!CPU_ISSET(processor, &allowed) || is_taken(processor, thread)) continue;
        cpu_set_t only;
        CPU_ZERO(&only);
        CPU_SET(processor, &only);
        if (sched_setaffinity(0, sizeof only, &only) != 0) return;
        place(thread, processor);
        sched_setaffinity(0, sizeof allowed, &allowed);
        return;
    }
}
#else
void Placement::settle(int) {}
void Placement::move(int) {}
#endif

}  // namespace rose
