// Which outermost ranges are one trace. We start these traces for threads that work without any
// OpenTelemetry span.
//
//     outermost ranges, in order:
//     thread ──[fwd]─[loss]─[bwd]─[Optimizer.step#]───[fwd]─[loss]─ ...   ──[val]─[val]── ...
//              └──────── training step ──────────┘   └── the next one       └───┘└── calls
//
// A trace begins with
//
//     a range that begins a training step (`kBeginsStep`)
//     each range of a source that begins traces, but for a module's call in training
//     the range after a step that the program marks
//     the range after idle time: a second, or a tenth of one in a bounded trace
//     the range after a bounded trace of ten seconds, or after any of 100,000 outermost ranges
//
// A trace is bounded if it began as neither training nor a call. The drain has the same rules
// (drain/training_steps.hpp), for programs that ask for the trace of a range.
//
// A thread's event ids count up, so a trace has all outermost ranges outside of spans from one
// event id to another one.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/own_trace_rows.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// The newest traces of each thread of the program. One thread of ours at a time uses it, and Python
// isn't needed.
class OwnTraces {
 public:
  // `begin_sources`: a bit for each source whose outermost ranges begin traces.
  explicit OwnTraces(uint32_t begin_sources) : begin_sources_(begin_sources) {}

  // Takes in what began and ended in a batch; adds the traces that began to `began`.
  void advance(const OutermostRanges& ranges, const TraceIdleLimits& idle_limits,
               UnfilledVector<NewTraceRow>& began) {
    forget_complete();
    OutermostEnds ends(ranges);
    end_earlier(ends);
    const OpenedRows& opened = ranges.opened;
    for (Py_ssize_t i = 0; i < opened.size(); ++i) {
      if (!ranges.is_outside_of_spans(opened.context[i])) continue;
      const Begin range{opened.event_id[i], opened.start_ns[i], opened.source[i], opened.flags[i]};
      begin(range, ranges, idle_limits, ends, began);
      if (is_new_) began.back().opened = i;
    }
    begin_unannounced(ranges, idle_limits, ends, began);
    for (NewTraceRow& row : began) {
      const Trace* const trace = find(row.begin);
      row.may_be_asked = trace != nullptr && trace->is_live();
    }
  }

  // Ends the traces whose threads were idle for so long, or whose times are that far in the future
  // since the clock was set back.
  void end_idle(int64_t now_ns, int64_t idle_ns) {
    end_if([=](const Trace& trace) {
      const int64_t idle_for_ns = now_ns - trace.end_ns;
      return trace.open.empty() && (idle_for_ns > idle_ns || -idle_for_ns > idle_ns);
    });
  }
  // Ends the traces in which nothing is open.
  void end_closed() {
    end_if([](const Trace& trace) { return trace.open.empty(); });
  }
  void end_all() {
    end_if([](const Trace&) { return true; });
  }

  // What is known of a trace; nothing if it was forgotten, alone or with its thread.
  std::optional<TraceState> state(uint64_t begin) {
    const Thread* const thread = known_thread(begin);
    const Trace* const trace = find(begin);
    if (trace == nullptr) return std::nullopt;
    const Trace& last = thread->traces.back();
    const bool has_next = trace != &last;
    return TraceState{
        trace->end_ns,  trace->until,         has_next,
        trace->is_over, !trace->open.empty(), has_next && trace + 1 == &last && !last.is_over};
  }

  // Whether a range that began in the trace lies in a traced Python call of it.
  bool is_in_call(uint64_t begin, uint64_t event_id) {
    const Trace* const trace = find(begin);
    if (trace == nullptr) return false;
    return std::any_of(trace->calls.begin(), trace->calls.end(), [event_id](const Call& call) {
      return call.event_id < event_id && event_id < call.next;
    });
  }

  // In ascending order.
  std::vector<LiveTraceRow> live() const {
    std::vector<LiveTraceRow> rows;
    for (const auto& [number, thread] : threads_) {
      for (const Trace& trace : thread.traces) {
        if (trace.is_live()) rows.push_back({trace.begin, trace.newest, trace.first});
      }
    }
    const auto is_before = [](const LiveTraceRow& one, const LiveTraceRow& other) {
      return one.begin < other.begin;
    };
    std::sort(rows.begin(), rows.end(), is_before);
    return rows;
  }

 private:
  static constexpr size_t kMaxThreads = 4096;
  static constexpr size_t kMaxTraces = 1024;  // of a thread, in which ranges are open

  struct Begin {
    uint64_t event_id;
    int64_t start_ns;
    uint8_t source;
    uint32_t flags;
  };
  // A traced Python call that is outermost. The ranges that began before `next`, the outermost
  // range after it, lie in it.
  struct Call {
    uint64_t event_id, next;
  };
  struct Trace {
    uint64_t begin, first, newest;
    uint64_t until;  // of the next thread the first event id, as long as no trace follows it
    int64_t start_ns, end_ns;
    uint32_t ranges = 0;
    bool is_bounded;  // it began as neither training nor a call
    bool is_marked;   // it is a step that the program marks
    bool is_over = false;
    std::vector<uint64_t> open = {};  // event ids of its outermost ranges, in ascending order
    std::vector<Call> calls = {};

    bool is_live() const { return !is_over || !open.empty(); }
  };
  struct Thread {
    std::vector<Trace> traces;  // in ascending order; complete ones go with the next batch
    bool has_trained = false;
    bool trains = false;  // its last trace began as a training step's
    uint64_t used = 0;    // the number of the batch in which its last trace began

    Trace* current() { return traces.empty() || traces.back().is_over ? nullptr : &traces.back(); }
    bool has_open() const {
      return std::any_of(traces.begin(), traces.end(),
                         [](const Trace& trace) { return !trace.open.empty(); });
    }
  };

  static bool is_evaluation(const Begin& range) { return (range.flags & kEvaluation) != 0; }

  // Whether the range begins a trace, whatever came before it. A call in training doesn't: it
  // belongs to a step.
  bool begins_trace(const Begin& range) const {
    return (begin_sources_ >> range.source & 1) != 0 &&
           (range.source != kModuleSource || is_evaluation(range));
  }

  // Whether the trace that begins with the range is a training step's, or continues one's.
  static bool trains(const Begin& range, const Thread& thread) {
    if ((range.flags & kBeginsStep) != 0) return true;
    if (range.source == kModuleSource) return !is_evaluation(range);
    return thread.trains && range.source != kStepSource;
  }

  // Whether a range that begins in its thread belongs to the trace.
  bool includes(const Trace& trace, const Begin& range, const TraceIdleLimits& idle_limits) const {
    if (trace.is_marked || (range.flags & kBeginsStep) != 0 || begins_trace(range)) return false;
    const int64_t length_ns = range.start_ns - trace.start_ns;
    const bool is_too_long =
        trace.ranges >= kMaxTraceRanges || (trace.is_bounded && length_ns > kLongestTraceNs);
    // Without module calls, each range may be an event of a thread that waits for the next one. In
    // one trace such ranges would be too short to be seen beside the time between them.
    const int64_t idle_ns = trace.is_bounded ? idle_limits.short_ns : idle_limits.ns;
    const bool is_idle = trace.open.empty() && range.start_ns - trace.end_ns > idle_ns;
    return length_ns >= 0 && !is_too_long && !is_idle;
  }

  // Adds a range to its trace. `is_new_` says afterwards whether the trace begins with it.
  void begin(const Begin& range, const OutermostRanges& ranges, const TraceIdleLimits& idle_limits,
             OutermostEnds& ends, UnfilledVector<NewTraceRow>& began) {
    Thread& thread = thread_of(range.event_id);
    is_new_ = false;
    // The clock was set back between two parts of a batch, and the later part came first. The range
    // lies in a trace that is known.
    if (!thread.traces.empty() && range.event_id <= thread.traces.back().newest) return;
    Trace* const current = thread.current();
    is_new_ = current == nullptr || !includes(*current, range, idle_limits);
    uint64_t first = is_new_ ? range.event_id : current->first;
    // The drain has put it into another trace when the program asked, and that counts. It knows
    // more than is known here: ranges that a view leaves out, and the span in which a worker was
    // made.
    const uint64_t asked = ranges.asked_first(range.event_id);
    if (asked != 0) {
      first = asked;
      is_new_ = current == nullptr || current->first != asked;
    }
    if (is_new_) start(thread, range, first, began);
    Trace& trace = thread.traces.back();
    if (!trace.calls.empty() && trace.calls.back().next == UINT64_MAX)
      trace.calls.back().next = range.event_id;
    if (range.source == kPythonCallSource) trace.calls.push_back({range.event_id, UINT64_MAX});
    trace.newest = range.event_id;
    ++trace.ranges;
    if (const std::optional<int64_t> end_ns = ends.end_ns(range.event_id)) {
      trace.end_ns = std::max(trace.end_ns, *end_ns);
    } else {
      trace.open.push_back(range.event_id);
    }
  }

  void start(Thread& thread, const Begin& range, uint64_t first,
             UnfilledVector<NewTraceRow>& began) {
    if (!thread.traces.empty()) {
      Trace& last = thread.traces.back();
      last.is_over = true;
      last.until = range.event_id;
    }
    const bool is_evaluated = thread.has_trained && is_evaluation(range);
    thread.trains = trains(range, thread);
    thread.has_trained = thread.has_trained || thread.trains;
    thread.used = batches_;
    const bool begins = (begin_sources_ >> range.source & 1) != 0;
    const uint64_t next_thread = ((range.event_id >> kOrdinalBits) + 1) << kOrdinalBits;
    thread.traces.push_back({range.event_id, first, range.event_id, next_thread, range.start_ns,
                             range.start_ns, 0, !thread.trains && !begins,
                             range.source == kStepSource});
    began.push_back(
        {range.event_id, first, range.start_ns, -1, -1, thread.trains, is_evaluated, false});
  }

  // Begins the traces of threads of which nothing is known, with ranges that no batch announced, as
  // one was missed. In other threads such ranges belong to the trace in which they began.
  void begin_unannounced(const OutermostRanges& ranges, const TraceIdleLimits& idle_limits,
                         OutermostEnds& ends, UnfilledVector<NewTraceRow>& began) {
    uint64_t last_root = 0;
    for (Py_ssize_t row = 0; row < ranges.size(); ++row) {
      const uint64_t root = ranges.root[row];
      if (root == last_root || !ranges.is_range_outside(row)) continue;
      last_root = root;
      if (!thread_of(root).traces.empty()) continue;
      begin({root, ranges.start_ns[row], kTorchSource, 0}, ranges, idle_limits, ends, began);
      if (is_new_) began.back().row = row;
    }
  }

  // Ends ranges that began in earlier batches.
  void end_earlier(OutermostEnds& ends) {
    for (auto& [number, thread] : threads_) {
      for (Trace& trace : thread.traces) {
        const auto has_ended = [&](uint64_t event_id) {
          const std::optional<int64_t> end_ns = ends.end_ns(event_id);
          if (end_ns) trace.end_ns = std::max(trace.end_ns, *end_ns);
          return end_ns.has_value();
        };
        const auto ended = std::remove_if(trace.open.begin(), trace.open.end(), has_ended);
        trace.open.erase(ended, trace.open.end());
      }
    }
  }

  template <typename IsEnded>
  void end_if(const IsEnded& is_ended) {
    for (auto& [number, thread] : threads_) {
      Trace* const current = thread.current();
      if (current != nullptr && is_ended(*current)) current->is_over = true;
    }
  }

  // Forgets complete traces. It is called before a batch, so that `state` knows each trace that
  // became complete with the last one. The newest two of a thread stay, as the step before the
  // current trace waits for its number.
  void forget_complete() {
    ++batches_;
    for (auto& [number, thread] : threads_) {
      std::vector<Trace>& traces = thread.traces;
      if (traces.size() <= 2) continue;
      const auto is_complete = [](const Trace& trace) { return !trace.is_live(); };
      traces.erase(std::remove_if(traces.begin(), traces.end() - 2, is_complete), traces.end() - 2);
      // A program may leave ranges open in all of them.
      if (traces.size() > kMaxTraces)
        traces.erase(traces.begin(), traces.end() - static_cast<std::ptrdiff_t>(kMaxTraces));
    }
    if (threads_.size() > kMaxThreads) forget_threads();
  }

  // Forgets the half of the threads in which no trace has begun for longest. Threads in which a
  // range is open come last: a main thread may have one open while it launches a thread per job,
  // and without the thread that range would have no trace when it ends.
  void forget_threads() {
    const auto last_use = [this](const Thread& thread) {
      return thread.has_open() ? batches_ : thread.used;
    };
    std::vector<uint64_t> used;
    for (const auto& [number, thread] : threads_) used.push_back(last_use(thread));
    const auto middle = used.begin() + static_cast<std::ptrdiff_t>(used.size() / 2);
    std::nth_element(used.begin(), middle, used.end());
    // A count, because the last use of all threads may be in the same batch.
    size_t remaining = threads_.size() / 2;
    for (auto next = threads_.begin(); next != threads_.end() && remaining != 0;) {
      if (last_use(next->second) > *middle) {
        ++next;
      } else {
        next = threads_.erase(next);
        --remaining;
      }
    }
    last_thread_ = nullptr;
  }

  Thread& thread_of(uint64_t event_id) {
    const uint64_t number = event_id >> kOrdinalBits;
    if (last_thread_ == nullptr || last_number_ != number) {
      last_thread_ = &threads_[number];
      last_number_ = number;
    }
    return *last_thread_;
  }

  Thread* known_thread(uint64_t event_id) {
    const auto found = threads_.find(event_id >> kOrdinalBits);
    return found == threads_.end() ? nullptr : &found->second;
  }

  // The trace that begins with that range; null if it isn't known any more.
  Trace* find(uint64_t begin) {
    Thread* const thread = known_thread(begin);
    if (thread == nullptr) return nullptr;
    const auto is_before = [](const Trace& one, uint64_t id) { return one.begin < id; };
    std::vector<Trace>& traces = thread->traces;
    const auto found = std::lower_bound(traces.begin(), traces.end(), begin, is_before);
    return found != traces.end() && found->begin == begin ? &*found : nullptr;
  }

  uint32_t begin_sources_;
  uint64_t batches_ = 0;
  bool is_new_ = false;
  std::unordered_map<uint64_t, Thread> threads_;  // by number
  Thread* last_thread_ = nullptr;                 // most ranges are of the same thread as the last
  uint64_t last_number_ = 0;
};

}  // namespace recfn::stage
