// The table of columns. Written by scripts/generate_model.py; change model/columns.py and run it.
//
// Each macro calls X(type, name, what says that there is nothing) for each of its columns.
#pragma once
#include <cstdint>

// Every column.
#define RECFN_COLUMNS(X) \
  X(uint64_t, event_id, 0) \
  X(uint8_t, kind, 0) \
  X(uint32_t, name, 0) \
  X(uint8_t, scope, 0) \
  X(uint8_t, source, 0) \
  X(int64_t, start_ns, 0) \
  X(int64_t, end_ns, 0) \
  X(uint32_t, thread, 0) \
  X(uint32_t, end_thread, 0) \
  X(int64_t, sequence_nr, -1) \
  X(uint64_t, forward_thread_id, 0) \
  X(uint64_t, handle, 0) \
  X(uint64_t, parent, 0) \
  X(uint64_t, root, 0) \
  X(uint32_t, context, 0) \
  X(int64_t, debug_handle, -1) \
  X(uint32_t, flags, 0) \
  X(uint32_t, shapes, 0) \
  X(uint32_t, dtypes, 0) \
  X(uint32_t, module, 0) \
  X(uint32_t, error, 0) \
  X(int64_t, node_id, -1) \
  X(uint32_t, profiler, 0) \
  X(int64_t, flops, 0) \
  X(uint32_t, stack, 0) \
  X(int64_t, nbytes, 0) \
  X(uint32_t, device, 0) \
  X(uint64_t, caller, 0) \
  X(int64_t, step_number, -1) \
  X(uint32_t, stacktrace, 0) \
  X(uint32_t, code, 0) \
  X(uint32_t, call_site, 0) \
  X(uint32_t, concrete_inputs, 0) \
  X(uint32_t, words, 0)

// Those that every drain writes, the largest first, so that a row has no gaps.
#define RECFN_USUAL_COLUMNS(X) \
  X(uint64_t, event_id, 0) \
  X(int64_t, start_ns, 0) \
  X(int64_t, end_ns, 0) \
  X(int64_t, sequence_nr, -1) \
  X(uint64_t, forward_thread_id, 0) \
  X(uint64_t, handle, 0) \
  X(uint64_t, parent, 0) \
  X(uint64_t, root, 0) \
  X(uint32_t, name, 0) \
  X(uint32_t, thread, 0) \
  X(uint32_t, end_thread, 0) \
  X(uint32_t, context, 0) \
  X(uint32_t, flags, 0) \
  X(uint32_t, module, 0) \
  X(uint8_t, kind, 0) \
  X(uint8_t, scope, 0) \
  X(uint8_t, source, 0)

// Those that a drain writes where some row isn't empty, the largest first.
#define RECFN_SELDOM_COLUMNS(X) \
  X(int64_t, debug_handle, -1) \
  X(int64_t, node_id, -1) \
  X(int64_t, flops, 0) \
  X(int64_t, nbytes, 0) \
  X(uint64_t, caller, 0) \
  X(int64_t, step_number, -1) \
  X(uint32_t, shapes, 0) \
  X(uint32_t, dtypes, 0) \
  X(uint32_t, error, 0) \
  X(uint32_t, profiler, 0) \
  X(uint32_t, stack, 0) \
  X(uint32_t, device, 0) \
  X(uint32_t, stacktrace, 0) \
  X(uint32_t, code, 0) \
  X(uint32_t, call_site, 0) \
  X(uint32_t, concrete_inputs, 0) \
  X(uint32_t, words, 0)

// What is told of a top-level range that began.
#define RECFN_ANNOUNCED_COLUMNS(X) \
  X(uint64_t, event_id, 0) \
  X(uint32_t, name, 0) \
  X(uint8_t, source, 0) \
  X(int64_t, start_ns, 0) \
  X(uint32_t, thread, 0) \
  X(uint32_t, context, 0) \
  X(uint32_t, flags, 0)

// Those that index the names, of the usual ones.
#define RECFN_USUAL_TEXT_COLUMNS(X) \
  X(uint32_t, name, 0) \
  X(uint32_t, module, 0)

// And of the others.
#define RECFN_SELDOM_TEXT_COLUMNS(X) \
  X(uint32_t, shapes, 0) \
  X(uint32_t, dtypes, 0) \
  X(uint32_t, error, 0) \
  X(uint32_t, stack, 0) \
  X(uint32_t, device, 0) \
  X(uint32_t, stacktrace, 0) \
  X(uint32_t, code, 0) \
  X(uint32_t, call_site, 0) \
  X(uint32_t, concrete_inputs, 0) \
  X(uint32_t, words, 0)
