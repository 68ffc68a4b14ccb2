// What a thread writes into its own ring, in 64-bit words. Written by ThreadBuffer, read by Drain,
// by nobody else.
//
// A record is a header word and what its kind adds. Name, Context, Text, Shapes, Number and Parent
// stand before the begin or end they belong to, and are published together with it; Epoch and
// Profiler hold from there on.
//
// Parent of a begin: with kBaseBegin what the last Context says; after a Parent record that range;
// else the innermost range of the thread that is open and not asynchronous.
//
// Begin     63            32 31       19 18       8 7     4 3    0
//           | fwd thread id | name slot | flags    | scope | kind |   ticks
// LongBegin the same, and                                             ticks, handle,
//                                                                     sequence number
// Mark      the same as Begin                                         ticks, 0
// Memory    the same; the slot names the device                       ticks, bytes
//                                                                     (negative: freed)
// End       63                        24 23       8 7     4 3    0
//           | ordinal of its begin      | flags    | 0     | kind |   ticks
// Name      | length in bytes | slot    |                    | kind |   bytes, zero-padded to words
// Text      |                 | name slot |          | which | kind |
// Context   |                                                | kind |   trace id (high, low),
//                                                                     span id, flags,
//                                                                     enclosing, root
// Shapes    | words           |                              | kind |   see shapes.hpp
// Number    |                                        | which | kind |   the number
// Epoch     | recording       |                              | kind |
// Profiler  | profiler run    |                              | kind |
// Parent    63                        24 23                   | kind |
//           | ordinal of the next begin's parent  |  0        |      |
//
// flags of a begin: EventFlag in bits 0-7, but for bit 5, which is kBaseBegin; EventSource in bits
// 8-10. Flags of an end: EventFlag in bits 0-15. Free: bits 8-15 of an end's flags, and three
// sources.
//
// A begin carries no id: the n-th begin, mark or memory record of a thread has ordinal n, which
// writer and reader both count. Nor does it carry a name or a parent: the name is a slot of a
// dictionary that both keep, and the parent follows from the order. So the begin and the end of an
// operator are 48 bytes, those of a range of Python's 32; longer records were slower.
#pragma once
#include <cstdint>

#include "model/columns.hpp"
#include "model/events.hpp"

namespace recfn {

enum RecordKind : uint64_t {
  kBegin = 1,
  kLongBegin = 2,
  kEnd = 3,
  kName = 4,
  kContext = 5,
  kText = 6,
  kShapes = 7,
  kNumber = 8,
  kProfiler = 9,
  kMark = 10,
  kMemory = 11,
  kParent = 12,
  kEpoch = 13,
};

// Those before kBeginTexts belong to a begin, the others to an end.
enum TextKind : uint64_t {
  kModuleText,
  kShapesText,
  kDtypesText,
  kCallStack,
  kCalledCode,
  kCallSite,
  kBeginTexts,
  kErrorText = kBeginTexts,
  kStacktrace,
  kAttributesText,
  kGenerationText,
  kRowTexts,
};
#define RECFN_KIND(type, name, empty) k_##name##_number,
enum NumberKind : uint64_t {
  RECFN_PRELUDE_NUMBERS(RECFN_KIND) RECFN_END_NUMBERS(RECFN_KIND) kDebugHandle
};
#undef RECFN_KIND

constexpr uint32_t kFlagsShift = 8;
constexpr uint32_t kSlotShift = 19;
constexpr uint32_t kEndOrdinalShift = 24;
constexpr uint32_t kBeginFlagsMask = (1u << (kSlotShift - kFlagsShift)) - 1;
constexpr uint32_t kEndFlagsMask = (1u << (kEndOrdinalShift - kFlagsShift)) - 1;
constexpr uint32_t kSlotMask = (1u << (32 - kSlotShift)) - 1;

// What begins and ends may say of EventFlag; ends say kExposed too.
constexpr uint32_t kEventFlags =
    kAsync | kError | kStaticRuntimeOutVariant | kNcclMeta | kPartial | kEvaluation;
constexpr uint32_t kBaseBegin = 32;  // in a begin's flags: its parent is what the last Context says
constexpr uint32_t kSourceShift = 8;  // EventSource in a begin's flags
constexpr uint32_t kSourceMask = 7u << kSourceShift;

constexpr uint64_t kOrdinalMask = (uint64_t{1} << kOrdinalBits) - 1;

constexpr uint32_t kNameSlots = 4096;  // of a thread's name dictionary, a power of two
static_assert(kNameSlots - 1 <= kSlotMask, "a name's slot fits the header");
static_assert(((kEventFlags | kExposed) & ~kEndFlagsMask) == 0 &&
              ((kEventFlags | kBaseBegin | kSourceMask) & ~kBeginFlagsMask) == 0);
static_assert((kEventFlags & (kBaseBegin | kSourceMask)) == 0 && (kBaseBegin & kSourceMask) == 0,
              "each bit says one thing");
constexpr uint32_t kMaxNameBytes = 2048;
constexpr uint32_t kMaxErrorBytes = 1024;
constexpr uint32_t kMaxRemoteErrorBytes = 208;  // of a range that another thread ends
constexpr uint32_t kMaxStacktraceBytes = 8192;  // of an exception
// Some 150 frames; innermost first, so what doesn't fit is the outermost.
constexpr uint32_t kMaxStackBytes = 16'384;
constexpr uint32_t kMaxShapesBytes = 16'384;  // a longer text is left out: cut it would not be JSON
constexpr uint32_t kMaxAttributesBytes = 16'384;  // the same
// A thread that never nests so deep never touches most of that memory.
constexpr uint32_t kMaxDepth = 16'384;
constexpr uint32_t kUsualDepth = 1024;
// Tasks that wait leave room for the ranges of the one that runs.
constexpr uint32_t kMaxDepthForAsync = 768;
constexpr uint32_t kMaxShapeWords = 512;

constexpr uint32_t kBeginWords = 2;
constexpr uint32_t kLongBeginWords = 4;
constexpr uint32_t kPointWords = 3;
constexpr uint32_t kEndWords = 2;
constexpr uint32_t kContextWords = 7;

constexpr uint32_t words_of(uint32_t bytes) { return (bytes + 7) / 8; }

inline uint64_t header(RecordKind kind, uint64_t scope, uint64_t flags, uint64_t slot,
                       uint64_t payload) {
  return kind | scope << 4 | flags << kFlagsShift | slot << kSlotShift | payload << 32;
}

// The parts of what header() puts together.
constexpr uint32_t kind_of(uint64_t head) { return head & 15; }
constexpr uint32_t scope_of(uint64_t head) { return head >> 4 & 15; }
constexpr uint32_t flags_of(uint64_t head) { return head >> kFlagsShift & kBeginFlagsMask; }
constexpr uint32_t slot_of(uint64_t head) { return head >> kSlotShift & kSlotMask; }
constexpr uint32_t payload_of(uint64_t head) { return static_cast<uint32_t>(head >> 32); }

inline uint64_t parent_header(uint64_t ordinal) { return kParent | ordinal << kEndOrdinalShift; }

inline uint64_t end_header(uint64_t flags, uint64_t ordinal) {
  return kEnd | flags << kFlagsShift | ordinal << kEndOrdinalShift;
}

// The parts of what parent_header() and end_header() put together.
constexpr uint32_t end_flags_of(uint64_t head) { return head >> kFlagsShift & kEndFlagsMask; }
constexpr uint64_t ordinal_of(uint64_t head) { return head >> kEndOrdinalShift; }

inline uint64_t make_event_id(uint64_t thread_number, uint64_t ordinal) {
  return thread_number << kOrdinalBits | ordinal;
}

struct Text {
  const char* data = nullptr;
  uint32_t size = 0;
};

// The values that few ends have beside their time; mostly none.
struct Ending {
  int64_t cpu_time_ns = -1;
  uint64_t ended_at = 0;   // in ticks; 0: now
  Text error, stacktrace;  // of what the range was left by
  Text attributes;         // an object in JSON
  Text generation;         // the same

  // A stack trace comes with an error only.
  constexpr bool has_texts() const { return (error.size | attributes.size | generation.size) != 0; }
};
inline constexpr Ending kNothingMore;  // a constant: an end on the hot path clears no memory for it

// The part of a prelude that few ranges have, or only when somebody asked for it.
struct OptionalPrelude {
  Text texts[kBeginTexts];
  const uint64_t* shapes = nullptr;
  uint32_t shape_words = 0;
  uint64_t began_at = 0;  // in ticks; 0: now. Of ranges of Python's alone
#define RECFN_RECORD_FIELD(type, name, empty) type name = empty;
  RECFN_PRELUDE_NUMBERS(RECFN_RECORD_FIELD)
#undef RECFN_RECORD_FIELD
};

// What the ring has before the begin itself; mostly nothing.
struct Prelude {
  int64_t debug_handle = -1;
  const OptionalPrelude* optional = nullptr;
};

// What a source says of a range that begins. Passed by value where an operator begins: one more
// word here costs each of them 10 ns.
struct Begin {
  Text name;
  // RecordFunction's, by which its end finds it; other sources use the event id.
  uint64_t handle = 0;
  int64_t sequence_nr = -1;
  uint64_t forward_thread_id = 0;
  uint32_t scope = 0;
  uint32_t flags = 0;        // EventFlag | source << kSourceShift
  bool has_numbers = false;  // handle and sequence_nr are worth writing (torch's always are)
  Prelude prelude;
};

// How many bytes of the text of UTF-8 fit into `limit`, whole characters.
inline uint32_t cut_at_character(const char* data, uint64_t size, uint32_t limit) {
  if (size <= limit) return static_cast<uint32_t>(size);
  while (limit > 0 && (data[limit] & 0xC0) == 0x80) --limit;
  return limit;
}

}  // namespace recfn
