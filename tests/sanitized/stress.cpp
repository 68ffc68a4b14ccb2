// Threads begin and end ranges, also each other's, and ask for the traces of theirs, while the
// drain reads and another thread looks which of them are quiet: for ThreadSanitizer. Each begin
// must come out as a row.
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "recording/begin_end.hpp"
#include "core/registry.hpp"
#include "drain/drain.hpp"

namespace {

constexpr uint32_t kThreads = 4;
constexpr uint32_t kRounds = 20'000;
constexpr uint32_t kDeepest = 6;
constexpr uint32_t kNames = 3'000;  // more than a thread's dictionary has slots for

// Asynchronous ranges that wait for some thread to end them: their event ids, 0 where there is
// none.
std::array<std::atomic<uint64_t>, 64> unfinished;
std::atomic<uint64_t> begins{0};
std::atomic<uint32_t> running{kThreads};

recfn::ThreadBuffer* start_recording() {
  recfn::Globals& globals = recfn::globals();
  recfn::registry().set_buffer_bytes(1u << 19);
  {
    const std::lock_guard lock(recfn::drain().mutex());
    recfn::drain().begin_recording();
    globals.epoch.fetch_add(1);
  }
  globals.recording.store(recfn::kRecordingBit | 0xFFFF);
  return recfn::registry().current();
}

uint64_t begin(recfn::ThreadBuffer& buffer, const std::string& name, uint32_t flags) {
  recfn::Begin range;
  range.name = {name.data(), static_cast<uint32_t>(name.size())};
  range.flags = flags;
  const uint64_t event_id = recfn::begin_range<false>(recfn::globals(), buffer, range, true);
  if (event_id != 0) begins.fetch_add(1, std::memory_order_relaxed);
  return event_id;
}

void end(recfn::ThreadBuffer& buffer, uint64_t event_id) {
  if (event_id != 0) recfn::end_range(recfn::globals(), buffer, event_id, 0, 0, {});
}

void ask(uint64_t event_id) {
  const std::lock_guard lock(recfn::drain().mutex());
  if (event_id != 0) recfn::drain().trace_of(event_id, {});
}

// Nested ranges, some of them asynchronous; those are ended by whichever thread comes by.
void work(uint32_t seed) {
  std::mt19937 random(seed);
  recfn::ThreadBuffer& buffer = *recfn::registry().current();
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::vector<uint64_t> open;
    const uint32_t depth = random() % kDeepest;
    for (uint32_t level = 0; level < depth; ++level) {
      open.push_back(begin(buffer, "range " + std::to_string(random() % kNames), 0));
    }
    const uint64_t asynchronous = begin(buffer, "asynchronous", recfn::kAsync);
    if (!open.empty() && random() % 64 == 0) ask(open.front());
    end(buffer, unfinished[random() % unfinished.size()].exchange(asynchronous));
    for (; !open.empty(); open.pop_back()) end(buffer, open.back());
  }
  running.fetch_sub(1);
}

// As the sampling thread does, and more often.
void look() {
  while (running.load() != 0) {
    {
      std::vector<recfn::QuietThread> quiet;
      const std::lock_guard lock(recfn::drain().mutex());
      if (recfn::drain().look(quiet, recfn::kLookPeriodNs)) recfn::drain().remove_busy(quiet);
      for (const recfn::QuietThread& found : quiet) {
        recfn::drain().add_sample(found.number,
                                  {found.position, 0, found.duration_ns, "function", ""});
      }
    }
    std::this_thread::yield();
  }
}

uint64_t drain(bool close_open) {
  const std::lock_guard lock(recfn::drain().mutex());
  return recfn::drain().run(close_open, false, false, {}, 0, 0).closed;
}

}  // namespace

int main() {
  if (start_recording() == nullptr) return 2;
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < kThreads; ++seed) threads.emplace_back(work, seed);
  threads.emplace_back(look);
  uint64_t rows = 0;
  while (running.load() != 0) rows += drain(false);
  for (std::thread& thread : threads) thread.join();
  rows += drain(true);
  const unsigned long long dropped = recfn::registry().not_recorded().dropped;
  std::printf("%llu begins, %llu rows, %llu dropped\n",
              static_cast<unsigned long long>(begins.load()), static_cast<unsigned long long>(rows),
              dropped);
  return rows == begins.load() ? 0 : 1;
}
