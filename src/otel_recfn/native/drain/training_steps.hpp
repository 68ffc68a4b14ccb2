// The training steps of a thread that nobody marks.
//
//   outermost ranges, in order:
//   thread ──[zero_grad]─[fwd]─[loss]─[bwd]─[Optimizer.step#]───[zero_grad]─[fwd]─ ...
//            └─────────────── training step ────────────────┘   └── the next one
//
// A step ends with a range of its source: PyTorch has one for an optimizer's step, and
// pytorch/modules.py one for a GradScaler's, which may skip the optimizer's. Only then it is known
// that the ranges before it were a step, so no source can open a range at its begin. The drain sees
// each begin in order, and notes a stretch: outermost ranges in a row that may become a step. A
// stretch begins with what follows a step, with the first call in training (pytorch/training.py
// distinguishes it), or after the thread was idle. The idle time is shorter if the stretch began as
// neither training nor a call. The traces of stage/own_traces.hpp are these steps.
//
// A step ends with the last optimizer's step before a module is called again:
//
//   [fwd]─[bwd]─[Optimizer.step#]─[unscale]─[Optimizer.step#]───[zero_grad]─[fwd]─ ...
//   └──────────────────── training step ────────────────────┘   └── the next one
//
// What follows an optimizer's step is another stretch, unless the thread has already recorded a
// further optimizer's step before a call. If that is recorded later, both stretches become one
// step; by then sinks have its second part as a trace of its own.
//
// A range is outermost here if it lies in no range but traced Python calls. The ranges in a span of
// the program's are a stretch of their own, so that a step nests in spans. A range in a `step` of
// the program's is not outermost, so it begins no training step. `is_marked` says that a step lies
// in one that a profiler marks.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "model/events.hpp"
#include "model/fields.hpp"

namespace recfn {

// Times are in Unix nanoseconds.
struct TrainingStep {
  int64_t number;  // in its thread, from 0
  // The event ids of its first outermost range, and of the one in which its optimizer stepped last.
  uint64_t first, last;
  int64_t start_ns, end_ns;
  uint32_t thread, context;  // as a row's
  bool is_marked;            // it lies in a range of a profiler's
};

constexpr auto fields_of(const TrainingStep*) {
  return std::array{RECFN_FIELD(TrainingStep, number),  RECFN_FIELD(TrainingStep, first),
                    RECFN_FIELD(TrainingStep, last),    RECFN_FIELD(TrainingStep, start_ns),
                    RECFN_FIELD(TrainingStep, end_ns),  RECFN_FIELD(TrainingStep, thread),
                    RECFN_FIELD(TrainingStep, context), RECFN_FIELD(TrainingStep, is_marked)};
}

// The range with which a trace of ours begins, if no span is around it; the trace gets its name.
struct TraceStart {
  uint64_t first = 0;  // its event id; 0: there is none
  uint32_t name = 0, source = 0, flags = 0;
};

// The part of a training loop that a range is.
enum class Work : uint8_t {
  kAny,
  kTraining,         // a module's call in training
  kOptimizerWork,    // what an optimizer does outside its steps
  kOptimizer,        // an optimizer's step, or a GradScaler's
  kEvaluation,       // a module's call that is no part of training
  kMarkedOptimizer,  // the same as kOptimizer, in a step that a profiler marks
  kStep,             // a `step` of the program's
};

inline bool is_optimizer(Work work) {
  return work == Work::kOptimizer || work == Work::kMarkedOptimizer;
}

inline bool is_call(Work work) { return work == Work::kTraining || work == Work::kEvaluation; }

// A range that begins after so long without another one begins a new stretch.
struct IdleLimits {
  int64_t ns = 0;
  int64_t short_idle_ns = 0;  // of a stretch that began as neither training nor a call
};

class TrainingSteps {
 public:
  struct Begin {
    uint64_t event_id;
    int64_t start_ns;
    uint32_t thread, context;
    Work work;
    TraceStart as_start;  // of a trace that would begin with this range
  };

  // An outermost range begins. Returns whether a training step begins with it, as far as is known.
  // `optimizer_comes()`: whether the thread has recorded an optimizer's step that comes before the
  // next module call.
  template <typename OptimizerComes>
  bool begin(const Begin& range, const IdleLimits& idle_limits,
             const OptimizerComes& optimizer_comes, std::vector<TrainingStep>& ended) {
    Stretch& current = of(range.context);
    const int64_t idle_ns = current.is_bounded ? idle_limits.short_idle_ns : idle_limits.ns;
    const bool follows = current.first != 0 && current.context == range.context &&
                         range.start_ns >= current.start_ns &&
                         (current.open != 0 || range.start_ns - current.end_ns <= idle_ns);
    bool begins_step = false;
    if (follows && range.work == Work::kAny &&
        !current.only_optimizer_continues) {  // an operator, mostly
      current.newest = range.event_id;
      ++current.open;
    } else {
      begins_step = begin_other(current, range, follows, optimizer_comes, ended);
    }
    note_trace(current, range);
    return begins_step;
  }

  // The trace of the range that began last in that context, by the rules of stage/own_traces.hpp.
  const TraceStart& trace(uint32_t context) { return of(context).trace; }

  // A range begins inside an outermost one.
  void begin_inside(uint32_t context, Work work, uint32_t thread,
                    std::vector<TrainingStep>& ended) {
    Stretch& current = of(context);
    if (current.open == 0 || current.context != context || work == Work::kAny ||
        work == Work::kStep) {
      return;
    }
    current.trains = work != Work::kEvaluation;
    current.has_closure |=
        !is_optimizer(work) && current.trains && current.optimizer == current.newest;
    if (is_call(work)) note_call(current, thread, ended);
    if (is_optimizer(work)) note_optimizer(current, work);
  }

  // An outermost range has ended.
  void end(uint64_t event_id, uint32_t context, int64_t end_ns) {
    Stretch& current = of(context);
    Stretch& in = event_id < current.first ? before(context) : current;
    if (in.open == 0 || in.context != context || event_id < in.first) return;
    --in.open;
    in.end_ns = std::max(in.end_ns, end_ns);
  }

  // Whether `end_stretches` may find a step.
  bool may_end() const { return stretches_[0].first != 0 || stretches_[1].first != 0; }

  // Ends the stretches in which nothing is open: those that were idle since an optimizer's step, or
  // all of them (`all`). What begins later belongs to none of them.
  void end_stretches(int64_t now_ns, int64_t idle_ns, uint32_t thread, bool all,
                     std::vector<TrainingStep>& ended) {
    for (size_t index = 0; index < stretches_.size(); ++index) {
      Stretch& current = stretches_[index];
      if (all || now_ns - current.start_ns > idle_ns) {
        finish(before_[index], thread, current.start_ns, ended);
      }
      const bool is_idle = current.has_stepped && now_ns - current.end_ns > idle_ns;
      if (current.first == 0 || current.open != 0 || !(all || is_idle)) continue;
      finish(current, thread, std::numeric_limits<int64_t>::max(), ended);
      current.first = 0;
      current.has_closure = false;
      current.only_optimizer_continues = false;
      current.is_marked = false;
    }
  }

  // Adds the steps that would be over if nothing followed. They go on.
  void copy_unfinished(int64_t now_ns, uint32_t thread, std::vector<TrainingStep>& copies) const {
    for (size_t index = 0; index < stretches_.size(); ++index) {
      const Stretch& current = stretches_[index];
      if (before_[index].has_stepped) {
        copies.push_back(step_of(before_[index], thread, current.start_ns));
      }
      if (current.has_stepped) copies.push_back(step_of(current, thread, now_ns));
    }
  }

  // The context of the span in which the thread was last. Several contexts may be of one span.
  uint32_t context() const { return stretches_[1].context; }
  void forget() { *this = {}; }
  template <typename Visit>
  void visit_context(const Visit& visit) {
    visit(stretches_[1].context);
    visit(before_[1].context);
  }
  template <typename Visit>
  void visit_names(const Visit& visit) {
    for (Stretch& current : stretches_) visit(current.trace.name);
  }

 private:
  // Outermost ranges in a row that may become a step.
  struct Stretch {
    uint64_t first = 0, newest = 0;  // event ids; 0: there is none
    uint64_t stepped_in = 0;         // the outermost range in which an optimizer stepped last
    uint64_t optimizer = 0;          // the last outermost range that is an optimizer's step itself
    int64_t start_ns = 0, end_ns = 0;
    uint32_t context = 0, open = 0;
    bool has_stepped = false, is_marked = false;
    // The optimizer's step calls the modules (it has a closure), so that it is all of the step.
    bool has_closure = false;
    bool has_called = false;  // a module was called
    // It began with an optimizer's step, right after another one or after idle time.
    bool begins_with_optimizer = false;
    // A further optimizer's step belongs to it, and nothing else that begins.
    bool only_optimizer_continues = false;
    bool trains = false;      // an operator that begins now is a part of training
    bool is_bounded = false;  // it began as neither training nor a call
    int64_t number = 0;       // of its step, once an optimizer has stepped
    TraceStart trace;         // that of its newest range: a long stretch has several traces
    int64_t trace_start_ns = 0;
    uint32_t ranges = 0;  // of that trace
  };

  Stretch& of(uint32_t context) { return stretches_[context != 0]; }
  Stretch& before(uint32_t context) { return before_[context != 0]; }

  // Begins a range that may begin another stretch. `follows`: it comes soon after the last range of
  // the current one.
  template <typename OptimizerComes>
  [[gnu::noinline]] bool begin_other(Stretch& current, const Begin& range, bool follows,
                                     const OptimizerComes& optimizer_comes,
                                     std::vector<TrainingStep>& ended) {
    const bool trains = range.work == Work::kTraining || range.work == Work::kOptimizerWork ||
                        is_optimizer(range.work) || (range.work == Work::kAny && current.trains);
    const bool is_separate = range.work == Work::kEvaluation || range.work == Work::kStep;
    const bool may_continue = follows && current.trains == trains && !is_separate;
    bool continues = may_continue &&
                     (!current.only_optimizer_continues || is_one_of_several(current, range.work));
    const bool is_between = may_continue && !continues && current.has_stepped &&
                            current.has_called && !current.has_closure &&
                            range.work != Work::kTraining;
    if (is_between) continues = optimizer_comes();
    if (!continues) {
      const bool begins_with_optimizer =
          is_optimizer(range.work) && (!follows || current.has_stepped);
      finish(before(range.context), range.thread, current.start_ns, ended);
      if (is_between) {
        before(range.context) = current;
      } else {
        finish(current, range.thread,
               current.context == range.context ? range.start_ns : current.end_ns, ended);
      }
      current = Stretch{};
      current.first = range.event_id;
      current.start_ns = range.start_ns;
      current.end_ns = range.start_ns;
      current.context = range.context;
      current.trains = trains;
      current.is_bounded = !trains && !is_separate;
      current.begins_with_optimizer = begins_with_optimizer;
    }
    current.newest = range.event_id;
    ++current.open;
    current.only_optimizer_continues = range.work == Work::kStep;
    if (is_call(range.work)) note_call(current, range.thread, ended);
    if (is_optimizer(range.work)) {
      current.optimizer = range.event_id;
      note_optimizer(current, range.work);
    }
    return !continues && trains;
  }

  static void note_trace(Stretch& current, const Begin& range) {
    const bool is_too_long =
        current.is_bounded && range.start_ns - current.trace_start_ns > kLongestTraceNs;
    if (current.first != range.event_id && current.ranges < kMaxTraceRanges && !is_too_long) {
      ++current.ranges;
      return;
    }
    current.trace = range.as_start;
    if (current.trains) current.trace.flags |= kBeginsStep;
    current.is_bounded = current.is_bounded || (current.first != range.event_id && !current.trains);
    current.trace_start_ns = range.start_ns;
    current.ranges = 1;
  }

  // Several optimizers in a row are of one step. They are of many steps if each calls the modules,
  // or if the thread does nothing else.
  static bool is_one_of_several(const Stretch& current, Work work) {
    return is_optimizer(work) && current.has_stepped && !current.has_closure &&
           !current.begins_with_optimizer;
  }

  // A module is called, so the step before this stretch is complete.
  void note_call(Stretch& current, uint32_t thread, std::vector<TrainingStep>& ended) {
    current.has_called = true;
    finish(before(current.context), thread, current.start_ns, ended);
  }

  void note_optimizer(Stretch& current, Work work) {
    Stretch& earlier = before(current.context);
    if (earlier.has_stepped) {
      current.first = earlier.first;
      current.start_ns = earlier.start_ns;
      current.open += earlier.open;
      current.number = earlier.number;
      current.has_stepped = true;
      current.has_called = true;
      earlier = Stretch{};
    }
    if (!current.has_stepped) current.number = number_++;
    current.is_marked = work == Work::kMarkedOptimizer;
    current.has_stepped = true;
    current.only_optimizer_continues = true;
    current.trains = true;
    current.stepped_in = current.newest;
  }

  // Reports the step of a stretch, if it has one.
  static void finish(Stretch& current, uint32_t thread, int64_t next_ns,
                     std::vector<TrainingStep>& ended) {
    if (!current.has_stepped) return;
    current.has_stepped = false;
    ended.push_back(step_of(current, thread, next_ns));
  }

  // Readers of traces draw a step around its ranges only if it is longer than they are, so it is a
  // nanosecond longer if nothing begins at its end.
  static TrainingStep step_of(const Stretch& stretch, uint32_t thread, int64_t next_ns) {
    const int64_t end_ns = stretch.open != 0 ? std::max(stretch.end_ns, next_ns)
                                             : stretch.end_ns + (next_ns > stretch.end_ns);
    return {stretch.number, stretch.first, stretch.stepped_in, stretch.start_ns,
            end_ns,         thread,        stretch.context,    stretch.is_marked};
  }

  std::array<Stretch, 2> stretches_;  // outside of spans, and in the span where the thread was last
  std::array<Stretch, 2> before_;     // the stretch before each, with which it may become one step
  int64_t number_ = 0;
};

}  // namespace recfn
