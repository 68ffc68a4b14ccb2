// The drain: reads every thread's ring, pairs begins with ends, names, nests, and seals what closed
// into columns.
//
// Runs without the GIL, one at a time (the caller holds `mutex()`). It keeps, per thread, what the
// ring's records refer back to: the name dictionary, the open ranges, the current context.
//
// A drain that fails (memory runs out, say) drops what it has read and all that is open, counted;
// the next one reads on there.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/clock.hpp"
#include "core/registry.hpp"
#include "drain/rows.hpp"

namespace recfn {

class Drain {
 public:
  std::mutex& mutex() { return mutex_; }

  // What closed since the last run. `open_ranges`: copies of the ranges that are still open come
  // after the rows. `known`: so many names of that epoch the caller has.
  Drained run(bool close_open, bool open_ranges, uint64_t epoch, size_t known);
  // So many rows never got to whoever asked for them. From any thread.
  void count_discarded(size_t rows) { discarded_.fetch_add(rows, std::memory_order_relaxed); }
  uint64_t discarded() const { return discarded_.load(std::memory_order_relaxed); }
  // A recording begins: its ranges' Unix times are by the wall clock as it is now, and what is left
  // of earlier ones is dropped.
  void begin_recording();
  void end_recording();
  void after_fork_in_child();

 private:
  struct OpenRange {
    OpenRange(uint64_t its_ordinal, uint64_t its_key) : ordinal(its_ordinal), key(its_key) {}

    FullRow row;
    uint64_t ordinal, key;
    bool compiles = false;  // it is a compilation, or lies in one
  };
  // The ranges and the context around a begin.
  struct Place {
    uint64_t parent, root;  // 0: none; the begin's own
    uint32_t context;
  };
  // A range that another thread has ended, which begins may still name as their parent.
  struct ClosedRemotely {
    uint64_t ordinal;
    Place place;
  };
  // The begin or point that is read now.
  struct Coming {
    uint64_t ticks, event_id;
    int64_t start_ns, offset_ns;
    Place place;
    bool in_compilation;
  };
  static constexpr uint32_t kUnlisted = UINT32_MAX;
  struct Thread {
    explicit Thread(ThreadBuffer* its_buffer) : buffer(its_buffer), dictionary(kNameSlots) {}

    ThreadBuffer* buffer;
    std::vector<uint32_t> dictionary;  // names by slot
    uint32_t index = kUnlisted;        // into out_.threads, once it is listed there
    bool has_ended = false;  // before this run collected what it had ended for other threads
    uint64_t ordinal = 0;    // of the last begin read
    uint32_t context = 0;    // into contexts_
    uint64_t enclosing = 0, root = 0;
    uint64_t parent_ordinal = 0;  // of the next begin; 0: not told
    uint32_t profiler = 0;
    uint32_t generation = kNoGeneration;  // of what is read now
    std::optional<SeldomRow> pending;     // what stood before the next begin or end
    const uint64_t* words = nullptr;      // of the ring that is read
    uint64_t mask = 0, ring_ends = 0;
    std::vector<OpenRange> open;
    uint32_t open_calls = 0;                      // of Python's, among them
    std::vector<ClosedRemotely> closed_remotely;  // the newest few

    uint64_t word(uint64_t at) const { return words[at & mask]; }

    SeldomRow& fill_pending() { return pending ? *pending : pending.emplace(); }
  };

  // drain.cpp: a run, and the tables that rows index.
  void read(bool close_open);
  void begin_clock();
  void follow_clock();
  void drop_open();
  void meet_new_threads();
  void list_threads();
  void list(Thread& thread);
  uint32_t thread_index(uint64_t number, uint32_t otherwise);
  void retire_ended();
  void compact_names();
  void compact_contexts();

  // read_records.cpp
  void read_thread(Thread& thread, uint64_t until_ticks);
  void enter_ring(Thread& thread, uint64_t at);
  uint64_t read_record(Thread& thread, uint64_t at);
  uint64_t read_other_record(Thread& thread, uint64_t head, uint64_t at);
  void read_name(Thread& thread, uint64_t head, uint64_t at);
  void read_text(Thread& thread, uint64_t head);
  void read_number(Thread& thread, uint64_t head, uint64_t number);
  void read_context(Thread& thread, uint64_t at);
  void read_shapes(Thread& thread, uint64_t at, uint32_t count);
  void read_begin(Thread& thread, uint64_t head, uint64_t at);
  void read_point(Thread& thread, uint64_t head, uint64_t at);
  void read_end(Thread& thread, uint64_t head, uint64_t ticks);
  bool is_of_earlier(Thread& thread, uint64_t ticks);
  Coming coming(Thread& thread, uint64_t head, uint64_t ticks);
  void fill(const Thread& thread, FullRow& row, uint64_t head, const Coming& one) const;
  bool is_phase(const Row& row) const;
  static void begun(Thread& thread);

  // open_ranges.cpp
  static const OpenRange* range_around(const Thread& thread, bool base);
  static Place told_place(const Thread& thread, bool base, uint64_t event_id);
  static std::optional<Place> place_in_named(const Thread& thread);
  uint64_t innermost_call(const Thread& thread) const;
  static void end_row(Row& row, int64_t end_ns, uint32_t thread, uint32_t end_thread);
  void seal(Thread& thread, OpenRange& open, int64_t end_ns, uint32_t flags, uint32_t end_thread);
  static std::optional<int64_t> let_out(Thread& thread, const OpenRange& open);
  void collect_remote_ends();
  void close_remotely_ended(Thread& thread, uint64_t until_ticks);
  void tell_closed_elsewhere();
  void close_all_open(int64_t now_ns);
  void copy_open(int64_t now_ns);

  const Globals& globals_ = recfn::globals();
  std::mutex mutex_;
  std::optional<ClockMapping> clock_;
  int64_t node_id_ = -1;  // of what this run reads
  NamePool names_;
  std::vector<Thread> threads_;
  std::vector<Context> contexts_{Context{}};
  std::unordered_map<uint64_t, RemoteEnd> remote_;  // what this run closes
  std::vector<RemoteEnd> untold_;
  Drained out_;  // what this run has read
  std::atomic<uint64_t> discarded_{0};
  std::atomic<uint64_t> ended_at_{UINT64_MAX};  // ticks of the last stop
  uint64_t earlier_ended_at_ = UINT64_MAX;      // of the last one before this recording
};

Drain& drain();

// The process's node in a distributed run: as PyTorch has it, where it is observed, which the
// program and torch.distributed tell; else what the program told. -1: none.
int64_t default_node_id();
void set_default_node_id(int64_t node_id);

}  // namespace recfn
