// What a source says of a range that begins.
#pragma once
#include <cstdint>

namespace recfn {

struct Text {
  const char* data = nullptr;
  uint32_t size = 0;
};

// What a range was left by; nothing where it ended well.
struct Failure {
  Text error, stacktrace;
};

// The part of a prelude that few ranges have, or only when somebody asked for it.
struct RarePrelude {
  Text module, stack, code, call_site;
  Text shapes_text, dtypes_text, concrete_text, words_text;
  const uint64_t* shapes = nullptr;
  uint32_t shape_words = 0;
  int64_t flops = 0;
  int64_t step_number = -1;
};

// What the ring has before the begin itself; mostly nothing.
struct Prelude {
  int64_t debug_handle = -1;
  const RarePrelude* rare = nullptr;
};

// Passed by value where an operator begins: measured, one more word here costs each of them 10 ns.
struct Begin {
  Text name;
  uint64_t name_hash = 0;  // as hash_name has it; 0: not known
  uint64_t handle = 0;  // RecordFunction's, by which its end finds it; other sources use the event id
  int64_t sequence_nr = -1;
  uint64_t forward_thread_id = 0;
  uint32_t scope = 0;
  uint32_t flags = 0;      // EventFlag | source << kSourceShift
  bool has_numbers = false;  // handle and sequence_nr are worth writing (torch's always are)
  Prelude prelude;
};

}  // namespace recfn
