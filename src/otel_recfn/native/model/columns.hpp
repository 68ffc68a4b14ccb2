// The table of columns. Written by scripts/generate_model.py; change model/columns.py and run it.
#pragma once
#include <cstdint>

// Calls one of its parameters for each column, the largest first, so that a row of them has no
// gaps: with its type, its name, what says that there is nothing, the attribute of spans, the
// argument in Chrome traces (both "" where there is none), and whether its text is JSON. Seldom
// columns are written by drains in which some row isn't empty, the others by each; texts index the
// names.
#define RECFN_COLUMNS(NUMBER, TEXT, OPTIONAL_NUMBER, OPTIONAL_TEXT)                          \
  NUMBER(uint64_t, event_id, 0, "recfn.event_id", "", false)                                 \
  NUMBER(int64_t, start_ns, 0, "", "", false)                                                \
  NUMBER(int64_t, end_ns, 0, "", "", false)                                                  \
  NUMBER(int64_t, sequence_nr, -1, "recfn.sequence_nr", "Sequence number", false)            \
  NUMBER(uint64_t, forward_thread_id, 0, "recfn.forward_thread_id", "Fwd thread id", false)  \
  NUMBER(uint64_t, handle, 0, "recfn.handle", "", false)                                     \
  NUMBER(uint64_t, parent, 0, "", "", false)                                                 \
  NUMBER(uint64_t, root, 0, "", "", false)                                                   \
  OPTIONAL_NUMBER(int64_t, debug_handle, -1, "recfn.debug_handle", "Debug handle", false)    \
  OPTIONAL_NUMBER(int64_t, node_id, -1, "recfn.node_id", "Node id", false)                   \
  OPTIONAL_NUMBER(int64_t, end_node_id, -1, "", "", false)                                   \
  OPTIONAL_NUMBER(int64_t, flops, 0, "", "Flops", false)                                     \
  OPTIONAL_NUMBER(int64_t, nbytes, 0, "", "", false)                                         \
  OPTIONAL_NUMBER(uint64_t, caller, 0, "", "", false)                                        \
  OPTIONAL_NUMBER(int64_t, step_number, -1, "recfn.step.number", "recfn.step.number", false) \
  OPTIONAL_NUMBER(int64_t, cpu_time_ns, -1, "recfn.cpu_time_ns", "CPU time (ns)", false)     \
  TEXT(uint32_t, name, 0, "", "", false)                                                     \
  NUMBER(uint32_t, thread, 0, "", "", false)                                                 \
  NUMBER(uint32_t, end_thread, 0, "", "", false)                                             \
  NUMBER(uint32_t, context, 0, "", "", false)                                                \
  NUMBER(uint32_t, flags, 0, "", "", false)                                                  \
  OPTIONAL_TEXT(uint32_t, shapes, 0, "recfn.input_shapes", "Input Dims", true)               \
  OPTIONAL_TEXT(uint32_t, dtypes, 0, "recfn.input_dtypes", "Input type", true)               \
  OPTIONAL_TEXT(uint32_t, module, 0, "recfn.module", "Module", false)                        \
  OPTIONAL_TEXT(uint32_t, error, 0, "", "Error", false)                                      \
  OPTIONAL_NUMBER(uint32_t, profiler, 0, "", "", false)                                      \
  OPTIONAL_TEXT(uint32_t, stack, 0, "", "Call stack", false)                                 \
  OPTIONAL_TEXT(uint32_t, device, 0, "", "Device", false)                                    \
  OPTIONAL_TEXT(uint32_t, module_class, 0, "recfn.module.class", "", false)                  \
  OPTIONAL_TEXT(uint32_t, enclosing_module, 0, "", "", false)                                \
  OPTIONAL_TEXT(uint32_t, stacktrace, 0, "", "", false)                                      \
  OPTIONAL_TEXT(uint32_t, code, 0, "", "", false)                                            \
  OPTIONAL_TEXT(uint32_t, call_site, 0, "", "Call site", false)                              \
  OPTIONAL_TEXT(uint32_t, concrete_inputs, 0, "", "Concrete Inputs", true)                   \
  OPTIONAL_TEXT(uint32_t, attributes, 0, "*", "Attributes", true)                            \
  OPTIONAL_TEXT(uint32_t, generation, 0, "", "", true)                                       \
  NUMBER(uint8_t, kind, 0, "", "", false)                                                    \
  NUMBER(uint8_t, scope, 0, "", "", false)                                                   \
  NUMBER(uint8_t, source, 0, "", "", false)

// What is told of a top-level range that began.
#define RECFN_OPENED_COLUMNS(X) \
  X(uint64_t, event_id, 0)      \
  X(uint32_t, name, 0)          \
  X(uint8_t, source, 0)         \
  X(int64_t, start_ns, 0)       \
  X(uint32_t, thread, 0)        \
  X(uint32_t, context, 0)       \
  X(uint32_t, flags, 0)

// Numbers that few begins have.
#define RECFN_PRELUDE_NUMBERS(X) \
  X(int64_t, flops, 0)           \
  X(int64_t, step_number, -1)

// Numbers that few ends have.
#define RECFN_END_NUMBERS(X) X(int64_t, cpu_time_ns, -1)

#define RECFN_NO_COLUMN(...)
#define RECFN_EACH_COLUMN(X) RECFN_COLUMNS(X, X, X, X)
#define RECFN_USUAL_COLUMNS(X) RECFN_COLUMNS(X, X, RECFN_NO_COLUMN, RECFN_NO_COLUMN)
#define RECFN_OPTIONAL_COLUMNS(X) RECFN_COLUMNS(RECFN_NO_COLUMN, RECFN_NO_COLUMN, X, X)
#define RECFN_NUMBER_COLUMNS(X) RECFN_COLUMNS(X, RECFN_NO_COLUMN, X, RECFN_NO_COLUMN)
#define RECFN_TEXT_COLUMNS(X) RECFN_COLUMNS(RECFN_NO_COLUMN, X, RECFN_NO_COLUMN, X)
