// The drain: reads every thread's ring, pairs begins with ends, names, nests, and seals what closed
// into columns.
//
//     ring of a thread ─► Thread: dictionary, context, ordinal ─► open: a stack of OpenRange
//       Name, Context,    what the next begin refers to           │  begin: push, with its parents
//       Text, ...                                                 │  end: find, usually the top
//       Begin, End                                                ▼
//     ring of a thread ─► ...                                     Row ─► columns ─► Batch
//     remote ends ──────────────────────────────────────────────► seal
//
//     drain.cpp          a run: which threads, until when; the tables that rows index
//     read_records.cpp   one ring: what each record says
//     open_ranges.cpp    what a range lies in, and how it ends
//     training_steps.hpp which outermost ranges are a step
//     python_samples.cpp what ran in Python meanwhile
//     rows.hpp           the columns
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
#include <string>
#include <unordered_map>
#include <vector>

#include "core/clock.hpp"
#include "core/registry.hpp"
#include "drain/node_ids.hpp"
#include "drain/python_samples.hpp"
#include "drain/rows.hpp"
#include "drain/training_steps.hpp"

namespace recfn {

// A handle that is sent to another process is a double there, which is exact up to 2**53. Event ids
// are handles below this number; ranges with larger ones have handles that are counted from it.
constexpr uint64_t kFirstCountedHandle = uint64_t{1} << 52;

// The most rows that are read between runs: what comes then waits in its ring, which is bounded.
constexpr size_t kMostReadBetweenRuns = size_t{1} << 18;

// A TraceStart with its range's name.
struct NamedTraceStart {
  uint64_t first;
  std::string name;
  uint32_t source, flags;
};

class Drain {
 public:
  std::mutex& mutex() { return mutex_; }

  // What closed since the last run. `open_ranges`: copies of the ranges that are still open come
  // after the rows, and copies of the training steps that go on. `idle_limits`: a training step
  // ends where nothing ran for so long; `end_steps`: wherever nothing is open. `known`: so many
  // names of that epoch the caller has.
  Drained run(bool close_open, bool open_ranges, bool end_steps, const IdleLimits& idle_limits,
              uint64_t epoch, size_t known);
  // The trace of ours that an open range would be in, if no span is around it: what its thread has
  // recorded is read until now, and waits for the next run. Nothing where the range isn't known.
  std::optional<NamedTraceStart> trace_of(uint64_t event_id, const IdleLimits& idle_limits);
  // Looks at what threads record from now on: those that have recorded something by then are
  // followed.
  void begin_looks();
  // A look at each of them that is due, which should come so long after the last one: adds those
  // that have recorded nothing for a millisecond. Returns whether one of them may run operators all
  // the same, so that `remove_busy` has to follow a millisecond later: below a span that isn't
  // sampled these have no moment; and where the look comes late, because other processes have the
  // cores, the thread may have had none.
  bool look(std::vector<QuietThread>& quiet, int64_t pause_ns);
  // Removes threads that have gone on since that look.
  void remove_busy(std::vector<QuietThread>& quiet);
  // What a thread ran that was found so.
  void add_sample(uint64_t thread_number, NewSample sample);
  // So many rows never got to whoever asked for them. From any thread.
  void count_discarded(size_t rows) { discarded_.fetch_add(rows, std::memory_order_relaxed); }
  uint64_t discarded() const { return discarded_.load(std::memory_order_relaxed); }
  // A recording begins: its ranges' Unix times are by the wall clock as it is now, and what is left
  // of earlier ones is dropped.
  void begin_recording();
  void end_recording();
  // No drain of the recording that has ended follows: what none has read is counted as lost.
  void discard_unread();
  void after_fork_in_child();
  // This moment, as rows have it. From any thread, also while the drain runs.
  Moment now();
  // So that no other thread changes what a fork copies.
  void before_fork();
  void after_fork();

 private:
  struct OpenRange {
    OpenRange() {}  // written for the reason that FullRow's is

    FullRow row;
    uint64_t key = 0;           // by which another thread ends it
    bool compiles = false;      // it is a compilation, or lies in one
    bool is_outermost = false;  // for training steps: it lies in no range but traced calls
    uint32_t step_context = 0;
    TraceStart trace;  // if it is outermost in that sense
  };
  // The ranges and the context around a begin. The outermost range is that in the context's span.
  struct Parents {
    uint64_t parent, root;  // 0: none; the begin's own
    uint32_t context;
  };
  // A range that another thread has ended, which begins may still name as their parent.
  struct ClosedRemotely {
    uint64_t event_id;
    Parents parents;
  };
  static constexpr uint32_t kUnlisted = UINT32_MAX;
  struct Thread {
    explicit Thread(ThreadBuffer* its_buffer) : buffer(its_buffer), dictionary(kNameSlots) {}

    ThreadBuffer* buffer;
    std::vector<uint32_t> dictionary;  // names by slot
    uint32_t index = kUnlisted;        // into out_.threads, once it is listed there
    bool has_ended = false;       // before this run collected what it had ended for other threads
    uint64_t ordinal = 0;         // of the last begin read
    uint64_t last_discarded = 0;  // of the last begin that was counted as lost before it was read
    int64_t last_ns = 0;          // of the last begin or end read, in Unix nanoseconds
    uint32_t context = 0;         // into contexts_
    uint64_t enclosing = 0, root = 0;
    uint64_t parent_ordinal = 0;  // of the next begin; 0: not told
    uint32_t profiler = 0;
    uint32_t epoch = kNoEpoch;              // of what is read now
    std::optional<OptionalFields> pending;  // what stood before the next begin or end
    const uint64_t* words = nullptr;        // of the ring that is read
    uint64_t mask = 0, ring_ends = 0;
    std::vector<OpenRange> open;
    uint32_t open_calls = 0;                      // of Python's, among them
    std::vector<ClosedRemotely> closed_remotely;  // the newest few
    TrainingSteps steps;
    Looks looks;
    std::vector<NewSample> samples;  // in the order of their positions

    uint64_t word(uint64_t position) const { return words[position & mask]; }

    OptionalFields& fill_pending() { return pending ? *pending : pending.emplace(); }
  };

  // drain.cpp: a run, and the tables that rows index.
  void read(bool close_open, bool end_steps);
  Thread* find_thread(uint64_t number);
  Thread* read_now(uint64_t number);
  Drained take();
  void drop_read(size_t closed);
  void begin_clock();
  void follow_clock();
  ClockMapping& clock();
  void drop_open();
  void meet_new_threads();
  void list_threads();
  void list(Thread& thread);
  uint32_t thread_index(uint64_t number, uint32_t otherwise);
  void settle_steps(bool all);
  void copy_steps(int64_t now_ns);
  void retire_ended();
  void compact_names();
  void compact_contexts();

  // read_records.cpp
  void read_thread(Thread& thread, uint64_t until_ticks);
  uint64_t read_until(Thread& thread, uint64_t position, uint64_t end, uint64_t until_ticks);
  void enter_ring(Thread& thread, uint64_t position);
  uint64_t read_record(Thread& thread, uint64_t position);
  uint64_t read_other_record(Thread& thread, uint64_t head, uint64_t position);
  static std::string name_at(const Thread& thread, uint64_t position);
  void read_name(Thread& thread, uint64_t head, uint64_t position);
  void read_text(Thread& thread, uint64_t head);
  void read_number(Thread& thread, uint64_t head, uint64_t number);
  void read_context(Thread& thread, uint64_t position);
  void read_shapes(Thread& thread, uint64_t position, uint32_t count);
  void read_begin(Thread& thread, uint64_t head, uint64_t ticks, uint64_t position);
  void read_point(Thread& thread, uint64_t head, uint64_t position);
  void read_end(Thread& thread, uint64_t head, uint64_t ticks);
  bool is_from_earlier(Thread& thread, uint64_t ticks);
  void fill(const Thread& thread, FullRow& row, uint64_t head, uint64_t ticks);
  const OpenRange* fill_parents(Thread& thread, FullRow& row, uint64_t head, uint64_t ticks,
                                const OpenRange* end) const;
  uint64_t handle_of(uint64_t event_id);
  bool is_phase(const Row& row) const;
  void note_compilation(OpenRange& range, bool in_compilation) const;
  static void note_enclosing_module(Thread& thread, FullRow& row);
  void number_enclosing_range(Thread& thread) const;
  Work work_of(const Thread& thread, const Row& row) const;
  void note_training(Thread& thread, OpenRange& range, uint64_t position);
  bool optimizer_comes(const Thread& thread, uint64_t position) const;
  static void count_begin(Thread& thread);

  // python_samples.cpp
  int64_t nanoseconds(uint64_t ticks) const;
  std::optional<QuietThread> look_at(Thread& thread, uint64_t ticks) const;
  void place(Thread& thread, const NewSample& sample);

  // open_ranges.cpp
  static OpenRange* find_open(Thread& thread, uint64_t event_id);
  static const OpenRange* innermost(const Thread& thread, const OpenRange* end);
  static Parents recorded_parents(Thread& thread, bool base, uint64_t event_id);
  static std::optional<Parents> parents_in_named(Thread& thread);
  uint64_t innermost_call(const Thread& thread) const;
  void note_end(FullRow& row, uint64_t ticks) const;
  static void end_row(Row& row, int64_t end_ns, uint32_t thread, uint32_t end_thread);
  void seal(Thread& thread, OpenRange& open, int64_t end_ns, uint32_t flags, uint32_t end_thread);
  static std::optional<int64_t> let_out(Thread& thread, const OpenRange& open);
  void collect_remote_ends();
  void close_remotely_ended(Thread& thread, uint64_t until_ticks);
  void report_remote_ends();
  void close_all_open(int64_t now_ns);
  void copy_open(int64_t now_ns);

  const Globals& globals_ = recfn::globals();
  std::mutex mutex_;
  // Held while the clocks are read and the mapping changes: a moment that another thread asks for
  // meanwhile would lie after the change, and be converted as before it.
  std::mutex clock_mutex_;
  std::optional<ClockMapping> clock_;
  const NodeIds& node_ids_ = node_ids();
  uint64_t next_handle_ = kFirstCountedHandle;
  NamePool names_;
  std::vector<Thread> threads_;
  std::vector<Context> contexts_{Context{}};
  std::unordered_map<uint64_t, RemoteEnd> remote_;  // what this run closes
  std::vector<RemoteEnd> unreported_;
  Drained out_;  // what was read since the last run
  IdleLimits idle_limits_;
  std::atomic<uint64_t> discarded_{0};
  std::atomic<uint64_t> ended_at_{UINT64_MAX};  // ticks of the last stop
  uint64_t earlier_ended_at_ = UINT64_MAX;      // of the last one before this recording
  uint64_t looked_at_ = 0;  // in ticks: when all threads were looked at, or one was sampled
};

Drain& drain();

}  // namespace recfn
