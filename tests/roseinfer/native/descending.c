// An OpenMP runtime that hands out the items of `schedule(dynamic)` from the last to the first, as
// OpenMP 5 allows: put before the real one by LD_PRELOAD. For a team of one thread.

#include <stdbool.h>

static long first, step, next;

static bool take(long *begin, long *end) {
    if (next < first) return false;
    *begin = next;
    *end = next + step;
    next -= step;
    return true;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long increment, long chunk,
                                          long *begin, long *stop) {
    (void)chunk;
    first = start;
    step = increment;
    next = start + (end - start - 1) / increment * increment;
    return take(begin, stop);
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *begin, long *end) { return take(begin, end); }

bool GOMP_loop_dynamic_start(long start, long end, long increment, long chunk, long *begin,
                             long *stop) {
    return GOMP_loop_nonmonotonic_dynamic_start(start, end, increment, chunk, begin, stop);
}

bool GOMP_loop_dynamic_next(long *begin, long *end) { return take(begin, end); }

void GOMP_loop_end(void) {}

void GOMP_loop_end_nowait(void) {}
