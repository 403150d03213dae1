// Keeps the threads of a team on different processors.
//
// They wait for each other some 150 times in a step. Where other programs run too, Linux often wakes
// a thread beside the one that woke it, and leaves both on one processor: each then spins through
// the time that the other needs, and a step takes ten times as long.
#pragma once

#include <atomic>

namespace rose {

class Placement {
  public:
    explicit Placement(int threads);

    // Called by each thread, often: costs a few nanoseconds while it stays where it is. One that
    // came to the processor of another moves to a free one, if its affinity allows one. The
    // affinity is the same afterwards.
    void settle(int thread);

    int processor_of(int thread) const {
        return processors[thread].load(std::memory_order_relaxed);
    }
    void place(int thread, int processor) {
        processors[thread].store(processor, std::memory_order_relaxed);
    }

  private:
    static constexpr int MAX_THREADS = 256;  // more are left to the system
    static constexpr int UNKNOWN = -1;

    bool is_taken(int processor, int thread) const;
    void move(int thread);

    std::atomic<int> processors[MAX_THREADS];  // where each thread was seen last
    const int threads;
};

}  // namespace rose
