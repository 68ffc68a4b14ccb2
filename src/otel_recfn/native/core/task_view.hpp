// What the task that runs in a thread sees: the current span, and its innermost open range.
#pragma once
#include <cstdint>
#include <cstring>

#include "model/events.hpp"

namespace recfn {

struct Context {
  uint64_t trace_high = 0, trace_low = 0, span_id = 0, flags = 0;
  uint64_t enclosing = 0, root = 0;  // event ids of the range around, where it isn't on this thread's stack, and of its outermost
  bool operator==(const Context& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};

// Whether what begins in it becomes no span.
inline bool gets_no_spans(const Context& context) {
  if ((context.flags & kSuppressedContext) != 0) return true;
  return (context.trace_high | context.trace_low) != 0 && (context.flags & kSampledContext) == 0;
}

// What a thread hands on to the threads that work for it; PyTorch carries it there with its own thread-local state.
struct Launch {
  void* entry = nullptr;  // a TaskEntry, what the launching task is in; null: in nothing
  uint64_t task = 0;      // stands for the launching task there, as a contextvars context does elsewhere
  uint64_t thread = 0;    // the number of the launching thread
};

constexpr uint64_t kLaunchedTask = uint64_t{1} << 63;  // no contextvars context has such a number

constexpr uint32_t kMaxTasks = 8;

struct TaskView {
  Context current;          // the span that is current
  bool has_latest = false;  // the task knows when that span became current, or has an open range
  uint64_t range = 0;       // event id of the innermost of these, where it began later than the span
  Context range_context;    // of that range, it and its root included
  uint64_t since_thread = 0, since_ordinal = 0;     // the later one began in this thread, after that many begins of it
  uint64_t tasks[kMaxTasks] = {}, task_count = 1;  // the contextvars contexts that are entered in the thread, the innermost first
};

}  // namespace recfn
