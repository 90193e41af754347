// A pool of threads that sleep while there is no work.
//
// A thread looks for the next part of a step for some microseconds before it sleeps, because waking
// it takes longer than most parts. Units are taken from a counter: if another program has a core,
// the threads on the others do more of them. Which thread computes a unit does not change a result.
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "shoal.h"

namespace {

const int64_t LITTLE = 1 << 18;  // cost of work that is not worth waking a thread
const int SPIN_US = 15;          // microseconds

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Returns whether `ready` becomes true within SPIN_US.
template <class Ready> bool soon(Ready ready) {
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(SPIN_US);
    do {
        for (int i = 0; i < 16; i++) {
            if (ready()) return true;
            pause_cpu();
        }
    } while (std::chrono::steady_clock::now() < until);
    return false;
}

struct Pool {
    std::mutex mutex;
    std::condition_variable work_there, work_done;
    std::vector<std::thread> threads;
    std::atomic<uint32_t> generation{0};
    std::atomic<int64_t> next{0};
    std::atomic<int> running{0};
    std::atomic<bool> ending{false};
    Work work = nullptr;
    void *context = nullptr;
    int64_t units = 0;

    void resize(int count) {
        stop();
        ending = false;
        uint32_t seen = generation;
        for (int i = 0; i < count; i++) threads.emplace_back([this, seen] { serve(seen); });
    }

    void stop() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            ending = true;
            generation++;
        }
        work_there.notify_all();
        for (auto &thread : threads) thread.join();
        threads.clear();
    }

    void take() {
        for (int64_t unit; (unit = next.fetch_add(1)) < units;) work(context, unit);
    }

    void serve(uint32_t seen) {
        for (;;) {
            auto changed = [&] { return generation.load() != seen; };
            if (!soon(changed)) {
                std::unique_lock<std::mutex> lock(mutex);
                work_there.wait(lock, changed);
            }
            if (ending) return;
            seen = generation;
            take();
            if (running.fetch_sub(1) == 1) {
                { std::lock_guard<std::mutex> lock(mutex); }
                work_done.notify_one();
            }
        }
    }

    void run(Work some, void *some_context, int64_t count) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            work = some, context = some_context, units = count;
            next = 0;
            running = (int)threads.size();
            generation++;
        }
        work_there.notify_all();
        take();
        auto done = [&] { return running.load() == 0; };
        if (soon(done)) return;
        std::unique_lock<std::mutex> lock(mutex);
        work_done.wait(lock, done);
    }
};

// Never destroyed: threads may still wait when the process ends.
Pool &pool() {
    static Pool *one = new Pool;
    return *one;
}

struct Scratch {
    void *memory[8] = {};
    int64_t bytes[8] = {};
    ~Scratch() {
        for (void *each : memory) free(each);
    }
};

}  // namespace

void shoal_parallel(Work work, void *context, int64_t units, int64_t cost) {
    if (units > 1 && cost >= LITTLE && !pool().threads.empty()) {
        pool().run(work, context, units);
        return;
    }
    for (int64_t unit = 0; unit < units; unit++) work(context, unit);
}

int64_t shoal_threads() { return (int64_t)pool().threads.size() + 1; }

void *shoal_scratch(int slot, int64_t bytes) {
    static thread_local Scratch scratch;
    if (scratch.bytes[slot] < bytes) {
        free(scratch.memory[slot]);
        int64_t rounded = (bytes + 4095) / 4096 * 4096;
        scratch.memory[slot] = aligned_alloc(4096, rounded);
        if (!scratch.memory[slot]) abort();
        scratch.bytes[slot] = rounded;
    }
    return scratch.memory[slot];
}

void shoal_pool_resize(int threads) {
    if ((int)pool().threads.size() != threads - 1) pool().resize(threads - 1);
}
