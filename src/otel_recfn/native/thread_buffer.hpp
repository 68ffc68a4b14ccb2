// The recording hot path: one thread's ring, its stack of open ranges and its name dictionary.
//
// One producer (the thread) and one consumer (the drain). No lock, no allocation, no system call per event; this header is
// compiled both into the recorder and into the torch observer, so that a begin is inlined into PyTorch's callback.
//
// Room: a begin is written only if, after it, there is still room for the end of every range that is open and recorded.
// A begin that is dropped leaves an entry without ordinal on the stack, which makes its end write nothing: what comes out of
// the ring always nests.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "record.hpp"
#include "remote_ends.hpp"
#include "ticks.hpp"

namespace recfn {

struct Context {
  uint64_t trace_high = 0, trace_low = 0, span_id = 0, flags = 0, enclosing = 0;
  bool operator==(const Context& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};

struct ThreadBuffer;

// The whole process's switches. Owned by registry.cpp, read by every begin.
struct Globals {
  // Bit per selected scope and kRecordingBit while recording; kObservedBit while a range observer is set.
  std::atomic<uint32_t> recording{0};
  std::atomic<uint32_t> generation{1};  // one per start after a stop
  bool use_cycle_counter = false;
  std::atomic<uint64_t> dropped_without_buffer{0};  // begins in threads that got no buffer, for want of memory
  // Bindings: the contextvars version of the calling thread (no GIL needed), and what is current in it (takes the GIL).
  std::atomic<uint64_t (*)()> context_version{nullptr};
  std::atomic<void (*)(ThreadBuffer&)> read_context{nullptr};
  // Torch observer: RecordFunction's logical id of the calling thread, the default node id, and a thread's farewell.
  std::atomic<uint64_t (*)()> logical_thread_id{nullptr};
  std::atomic<int64_t (*)()> default_node_id{nullptr};
  std::atomic<int64_t> own_node_id{-1};  // what the program set in Python; -1: PyTorch's, where it is observed
  std::atomic<void (*)()> on_thread_exit{nullptr};
  // Torch observer, while a profiler run is active: the run that PyTorch's thread-local state says the calling thread works for.
  std::atomic<uint32_t (*)()> read_profiler{nullptr};
  std::atomic<uint32_t> extras{0};  // Extra
  // Bindings: the calling thread's Python stack as text of at most `size` bytes; takes the GIL.
  std::atomic<uint32_t (*)(char* text, uint32_t size)> read_stack{nullptr};
  RemoteEnds remote_ends;
};
constexpr uint32_t kRecordingBit = 1u << 31;
constexpr uint32_t kObservedBit = 1u << 30;  // record_function asks its range observer, recording or not
constexpr uint32_t kStackBit = 1u << 29;     // ranges carry their stack

struct Text {
  const char* data = nullptr;
  uint32_t size = 0;
};

// What few ranges have, or only when somebody asked for it; written before the begin.
struct RareExtras {
  Text module, stack;
  Text shapes_text, dtypes_text;
  const uint64_t* shapes = nullptr;
  uint32_t shape_words = 0;
  int64_t flops = 0;
};

struct Extras {
  int64_t debug_handle = -1;
  const RareExtras* rare = nullptr;
};

struct Begin {
  Text name;
  uint64_t handle = 0;  // RecordFunction's, by which its end finds it; other sources use the event id
  int64_t sequence_nr = -1;
  uint64_t forward_thread_id = 0;
  uint32_t scope = 0;
  uint32_t flags = 0;      // EventFlag | source << kSourceShift
  bool has_numbers = false;  // handle and sequence_nr are worth writing (torch's always are)
  Extras extras;
};

struct OpenEntry {
  uint64_t key;
  uint64_t ordinal : 63;  // 0: the begin was not recorded
  uint64_t async : 1;
};

struct NameSlot {
  uint64_t hash;
  uint64_t size_plus_one;  // 0: empty
};

// Keys of ranges that another thread ended, told by the drain to the thread that still has them on its stack.
struct ClosedElsewhere {
  static constexpr uint32_t kCapacity = 64;
  std::atomic<uint32_t> head{0}, tail{0};
  uint64_t keys[kCapacity];

  bool push(uint64_t key) {
    const uint32_t at = head.load(std::memory_order_relaxed);
    if (at - tail.load(std::memory_order_acquire) == kCapacity) return false;
    keys[at % kCapacity] = key;
    head.store(at + 1, std::memory_order_release);
    return true;
  }
};

enum Unsent : uint8_t { kContextUnsent = 1, kProfilerUnsent = 2 };
constexpr uint32_t kNoGeneration = 0;

struct ThreadBuffer {
  // The producer's own.
  uint64_t* words = nullptr;
  uint64_t capacity = 0;  // in words, a power of two
  uint64_t head = 0;
  uint64_t tail_seen = 0;
  uint32_t depth = 0;
  uint32_t floor = 0;          // stack entries below it belong to an earlier recording
  uint32_t open_recorded = 0;  // each has kEndWords reserved
  uint32_t untracked = 0;      // dropped begins of torch that found the stack full
  uint32_t generation = 0;
  bool context_stale = true;
  bool has_logical_id = false;
  bool muted = false;  // `generation` is kNoGeneration meanwhile, `muted_generation` what it was
  uint8_t unsent = 0;  // Unsent
  uint32_t muted_generation = 0;
  uint32_t profiler = 0;       // the run that this thread was told to work for
  uint32_t profiler_sent = 0;  // the run that the ring's last Profiler record names
  bool name_noted = false;
  uint64_t context_version = 0;
  uint64_t name_seed = 0;
  Context context;
  std::atomic<uint64_t> ordinal{0};  // begins recorded
  std::atomic<uint64_t> dropped{0};
  // Shared with the drain.
  alignas(64) std::atomic<uint64_t> published{0};
  alignas(64) std::atomic<uint64_t> consumed{0};
  ClosedElsewhere closed_elsewhere;
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> thread_id{0};
  uint64_t number = 0, native_id = 0, ident = 0;
  OpenEntry stack[kMaxDepth];
  NameSlot names[kNameSlots];

  void put(uint64_t word) { words[head++ & (capacity - 1)] = word; }

  void put_text(Text text) {
    for (uint32_t at = 0; at < text.size; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data + at, text.size - at < 8 ? text.size - at : 8);
      put(word);
    }
  }

  bool has_room(uint64_t count) {
    if (capacity - (head - tail_seen) >= count) return true;
    tail_seen = consumed.load(std::memory_order_acquire);
    return capacity - (head - tail_seen) >= count;
  }

  // Writes `count` words and publishes them with all that was put before. The members are read once: what is stored into the
  // ring could alias them, as far as the compiler knows.
  template <uint32_t count>
  void put_and_publish(const uint64_t (&record)[count]) {
    uint64_t* const ring = words;
    const uint64_t mask = capacity - 1, at = head;
    for (uint32_t index = 0; index < count; ++index) ring[(at + index) & mask] = record[index];
    head = at + count;
    published.store(at + count, std::memory_order_release);
  }
};

inline uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t load_up_to_8(const char* data, uint32_t size) {
  uint64_t word = 0;
  if (size >= 8) {
    std::memcpy(&word, data, 8);
  } else if (size >= 4) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + size - 4, 4);
    word = low | static_cast<uint64_t>(high) << 32;
  } else if (size > 0) {
    word = static_cast<uint8_t>(data[0]) | static_cast<uint8_t>(data[size / 2]) << 8 |
           static_cast<uint64_t>(static_cast<uint8_t>(data[size - 1])) << 16;
  }
  return word;
}

// Names are told apart by this and their size. The seed is random per process: no input can aim for a collision.
inline uint64_t hash_name(Text name, uint64_t seed) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
  uint64_t state = seed ^ name.size;
  const char* at = name.data;
  uint32_t left = name.size;
  for (; left > 8; at += 8, left -= 8) state = mix(state ^ load_up_to_8(at, 8), kOdd);
  return mix(state ^ load_up_to_8(at, left), kOdd ^ seed);
}

// Where a name stands in the thread's dictionary, which the drain rebuilds from the Name records. `hit` says whether it
// already stands there; if not, writing it replaces what the slot held.
inline uint32_t find_name_slot(ThreadBuffer& buffer, Text name, uint64_t hash, bool& hit) {
  constexpr uint32_t kProbes = 4;
  const auto home = static_cast<uint32_t>(hash);
  uint32_t victim = (home + (static_cast<uint32_t>(hash >> 40) & (kProbes - 1))) & (kNameSlots - 1);
  for (uint32_t probe = 0; probe < kProbes; ++probe) {
    const uint32_t slot = (home + probe) & (kNameSlots - 1);
    const NameSlot& held = buffer.names[slot];
    if (held.hash == hash && held.size_plus_one == name.size + 1u) {
      hit = true;
      return slot;
    }
    if (held.size_plus_one == 0) {
      victim = slot;
      break;
    }
  }
  hit = false;
  return victim;
}

// A capture began since this thread's last begin: what is open belongs to an earlier one.
inline void enter_generation(ThreadBuffer& buffer, uint32_t generation) {
  buffer.generation = generation;
  buffer.floor = buffer.depth;
  buffer.open_recorded = 0;
  buffer.context_stale = true;
}

inline void remove_entry(ThreadBuffer& buffer, uint32_t index) {
  std::memmove(&buffer.stack[index], &buffer.stack[index + 1], (buffer.depth - index - 1) * sizeof(OpenEntry));
  --buffer.depth;
  if (index < buffer.floor) --buffer.floor;
}

[[gnu::noinline]] inline void forget_closed_elsewhere(ThreadBuffer& buffer) {
  ClosedElsewhere& closed = buffer.closed_elsewhere;
  uint32_t tail = closed.tail.load(std::memory_order_relaxed);
  for (const uint32_t head = closed.head.load(std::memory_order_acquire); tail != head; ++tail) {
    for (uint32_t index = buffer.depth; index-- > 0;) {
      if (buffer.stack[index].key != closed.keys[tail % ClosedElsewhere::kCapacity]) continue;
      if (buffer.stack[index].ordinal != 0 && index >= buffer.floor) --buffer.open_recorded;
      remove_entry(buffer, index);
      break;
    }
  }
  closed.tail.store(tail, std::memory_order_release);
}

// Reads the OpenTelemetry context again only when the thread attached or detached one, or switched contextvars context.
inline void refresh_context(Globals& globals, ThreadBuffer& buffer) {
  const auto version_of = globals.context_version.load(std::memory_order_relaxed);
  const uint64_t version = version_of != nullptr ? version_of() : 0;
  if (!buffer.context_stale && version == buffer.context_version) return;
  buffer.context_version = version;
  buffer.context_stale = false;
  const Context before = buffer.context;
  buffer.context = Context{};
  if (const auto read = globals.read_context.load(std::memory_order_relaxed)) read(buffer);
  if (!(buffer.context == before)) buffer.unsent |= kContextUnsent;
}

// What the thread itself was told wins nothing over what PyTorch carried there: where both are known they are the same.
inline void send_profiler(Globals& globals, ThreadBuffer& buffer) {
  const auto read = globals.read_profiler.load(std::memory_order_relaxed);
  const uint32_t carried = read != nullptr ? read() : 0;
  const uint32_t profiler = carried != 0 ? carried : buffer.profiler;
  if (profiler == buffer.profiler_sent) return;
  buffer.profiler_sent = profiler;
  buffer.unsent |= kProfilerUnsent;
}

inline void adopt_logical_id(Globals& globals, ThreadBuffer& buffer) {
  if (const auto logical_id = globals.logical_thread_id.load(std::memory_order_relaxed)) {
    buffer.has_logical_id = true;
    buffer.thread_id.store(logical_id(), std::memory_order_relaxed);
  }
}

inline void put_context(ThreadBuffer& buffer) {
  buffer.put(kContext);
  buffer.put(buffer.context.trace_high);
  buffer.put(buffer.context.trace_low);
  buffer.put(buffer.context.span_id);
  buffer.put(buffer.context.flags);
  buffer.put(buffer.context.enclosing);
}

inline uint32_t text_words(Text text) { return text.size != 0 ? 1 + words_of(text.size) : 0; }

inline uint32_t rare_words(const RareExtras& rare) {
  return text_words(rare.module) + text_words(rare.shapes_text) + text_words(rare.dtypes_text) +
         (rare.stack.size != 0 ? text_words(rare.stack) + 1 : 0) + (rare.shape_words != 0 ? 1 + rare.shape_words : 0) +
         (rare.flops != 0 ? 2 : 0);
}

// What may stand before a begin, at most.
[[gnu::always_inline]] inline uint32_t extra_words(const ThreadBuffer& buffer, const Extras& extras) {
  uint32_t words = (buffer.unsent & kContextUnsent) != 0 ? kContextWords : 0;
  if ((buffer.unsent & kProfilerUnsent) != 0) words += 1;
  if (extras.debug_handle != -1) words += 2;
  if (__builtin_expect(extras.rare != nullptr, 0)) words += rare_words(*extras.rare);
  return words;
}

[[gnu::noinline]] inline void put_name(ThreadBuffer& buffer, Text name, uint64_t hash, uint32_t slot) {
  buffer.names[slot] = {hash, name.size + 1u};
  buffer.put(header(kName, 0, 0, slot, name.size));
  buffer.put_text(name);
}

// Where the text stands in the dictionary, after it was written there if need be.
inline uint32_t put_named(ThreadBuffer& buffer, Text text) {
  bool named;
  const uint64_t hash = hash_name(text, buffer.name_seed);
  const uint32_t slot = find_name_slot(buffer, text, hash, named);
  if (!named) put_name(buffer, text, hash, slot);
  return slot;
}

inline void put_text_record(ThreadBuffer& buffer, TextKind kind, Text text) {
  if (text.size == 0) return;
  buffer.put(header(kText, kind, 0, 0, text.size));
  buffer.put_text(text);
}

inline void put_rare(ThreadBuffer& buffer, const RareExtras& rare) {
  put_text_record(buffer, kModuleText, rare.module);
  put_text_record(buffer, kShapesText, rare.shapes_text);
  put_text_record(buffer, kDtypesText, rare.dtypes_text);
  if (rare.stack.size != 0) {
    const uint32_t slot = put_named(buffer, rare.stack);
    buffer.put(header(kStack, 0, 0, slot, 0));
  }
  if (rare.shape_words != 0) {
    buffer.put(header(kShapes, 0, 0, 0, rare.shape_words));
    for (uint32_t at = 0; at < rare.shape_words; ++at) buffer.put(rare.shapes[at]);
  }
  if (rare.flops != 0) {
    buffer.put(kFlops);
    buffer.put(static_cast<uint64_t>(rare.flops));
  }
}

// By value: the hot path's own copy stays in registers.
[[gnu::noinline]] inline void put_extras(ThreadBuffer& buffer, Extras extras) {
  if ((buffer.unsent & kContextUnsent) != 0) put_context(buffer);
  if ((buffer.unsent & kProfilerUnsent) != 0) buffer.put(header(kProfiler, 0, 0, 0, buffer.profiler_sent));
  buffer.unsent = 0;
  if (extras.rare != nullptr) put_rare(buffer, *extras.rare);
  if (extras.debug_handle != -1) {
    buffer.put(kDebugHandle);
    buffer.put(static_cast<uint64_t>(extras.debug_handle));
  }
}

// Whether no recorded range of this thread encloses the next begin, as far as the thread alone can tell: then the parent is a
// matter of context. An open asynchronous range encloses only what its own task does, which the context knows.
inline bool is_base(const ThreadBuffer& buffer) {
  for (uint32_t index = buffer.depth; index-- > buffer.floor;) {
    if (buffer.stack[index].async) return true;
    if (buffer.stack[index].ordinal != 0) return false;
  }
  return true;
}

inline bool selects(uint32_t recording, uint32_t scope) { return (recording >> scope & 1) != 0; }

inline void count_dropped(ThreadBuffer& buffer) {
  buffer.dropped.store(buffer.dropped.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

[[gnu::always_inline]] inline void put_end(Globals& globals, ThreadBuffer& buffer, uint64_t ordinal, uint32_t flags, Text error) {
  const uint64_t ticks = read_ticks(globals.use_cycle_counter);
  const uint64_t reserved = uint64_t{kEndWords} * buffer.open_recorded;  // this end's room included
  if (__builtin_expect(error.size != 0, 0) && buffer.has_room(reserved + 1 + words_of(error.size))) {
    buffer.put(header(kText, kErrorText, 0, 0, error.size));
    buffer.put_text(error);
  }
  --buffer.open_recorded;
  buffer.put_and_publish({end_header(flags, ordinal), ticks});
}

// A begin that was under way while its capture was drained for the last time came into the next one's records: what is open is
// closed there (the drain ignores ends of what it has closed itself), or it would enclose all that follows.
[[gnu::noinline]] inline void close_earlier_generation(Globals& globals, ThreadBuffer& buffer) {
  for (uint32_t index = buffer.depth; index-- > buffer.floor;) {
    if (buffer.stack[index].ordinal != 0) put_end(globals, buffer, buffer.stack[index].ordinal, kPartial, {});
  }
}

// What changed since this thread's last begin: a capture began, or a range of ours was ended elsewhere. False when the thread is
// muted: nothing of it is recorded. (A muted thread's generation is never the current one, so that others don't pay for asking.)
inline bool catch_up(Globals& globals, ThreadBuffer& buffer) {
  const ClosedElsewhere& closed = buffer.closed_elsewhere;
  const bool told = closed.head.load(std::memory_order_relaxed) != closed.tail.load(std::memory_order_relaxed);
  if (__builtin_expect(told, 0)) forget_closed_elsewhere(buffer);
  const uint32_t generation = globals.generation.load(std::memory_order_relaxed);
  if (__builtin_expect(buffer.generation != generation, 0)) {
    if (buffer.muted) return false;
    close_earlier_generation(globals, buffer);
    enter_generation(buffer, generation);
  }
  return true;
}

inline void mute(ThreadBuffer& buffer, bool muted) {
  if (muted == buffer.muted) return;
  buffer.muted = muted;
  if (muted) buffer.muted_generation = buffer.generation;
  buffer.generation = muted ? kNoGeneration : buffer.muted_generation;
}

// Writes the begin and what stands before it. Returns its ordinal, or 0 when there is no room.
template <bool kTorch>
[[gnu::always_inline]] inline uint64_t put_begin(Globals& globals, ThreadBuffer& buffer, Begin begin, uint32_t base) {
  bool named;
  const uint64_t hash = hash_name(begin.name, buffer.name_seed);
  uint32_t slot = find_name_slot(buffer, begin.name, hash, named);
  const uint32_t extras = extra_words(buffer, begin.extras);
  const uint32_t name_words = named && extras == 0 ? 0 : 1 + words_of(begin.name.size);
  const uint64_t ends = uint64_t{kEndWords} * (buffer.open_recorded + 1u);
  const bool numbers = kTorch || begin.has_numbers;
  if (__builtin_expect(!buffer.has_room((numbers ? kLongBeginWords : kBeginWords) + extras + name_words + ends), 0)) return 0;
  if (__builtin_expect(extras != 0, 0)) {
    put_extras(buffer, begin.extras);
    slot = find_name_slot(buffer, begin.name, hash, named);  // a stack may have taken the name's slot
  }
  if (__builtin_expect(!named, 0)) put_name(buffer, begin.name, hash, slot);
  const uint64_t forward = begin.forward_thread_id <= UINT32_MAX ? begin.forward_thread_id : 0;
  const uint64_t head = header(numbers ? kLongBegin : kBegin, begin.scope, begin.flags | base, slot, forward);
  const uint64_t ticks = read_ticks(globals.use_cycle_counter);
  const uint64_t ordinal = buffer.ordinal.load(std::memory_order_relaxed) + 1;
  buffer.ordinal.store(ordinal, std::memory_order_relaxed);
  ++buffer.open_recorded;
  if (numbers) {
    buffer.put_and_publish({head, ticks, begin.handle, static_cast<uint64_t>(begin.sequence_nr)});
  } else {
    buffer.put_and_publish({head, ticks});
  }
  return ordinal;
}

// Before a begin outside every range: what the thread works for may have changed.
inline void look_around(Globals& globals, ThreadBuffer& buffer) {
  refresh_context(globals, buffer);
  send_profiler(globals, buffer);
  if (__builtin_expect(!buffer.has_logical_id, 0)) adopt_logical_id(globals, buffer);
}

// Opens a range. Returns its event id, or 0 when it is not recorded. A begin of torch leaves an entry on the stack in that case
// too, because its end is called whatever became of the begin.
template <bool kTorch>
[[gnu::always_inline]] inline uint64_t begin_range(Globals& globals, ThreadBuffer& buffer, Begin begin, bool selected) {
  selected &= catch_up(globals, buffer);
  if (__builtin_expect(buffer.depth >= ((begin.flags & kAsync) != 0 ? kMaxDepthForAsync : kMaxDepth), 0)) {
    if (selected) count_dropped(buffer);
    buffer.untracked += kTorch;
    return 0;
  }
  uint64_t ordinal = 0;
  if (__builtin_expect(selected, 1)) {
    const bool base = is_base(buffer);
    if (base) look_around(globals, buffer);
    ordinal = put_begin<kTorch>(globals, buffer, begin, base ? kBaseBegin : 0);
    if (__builtin_expect(ordinal == 0, 0)) count_dropped(buffer);
  }
  if (!kTorch && ordinal == 0) return 0;
  const uint64_t event_id = make_event_id(buffer.number, ordinal);
  OpenEntry& entry = buffer.stack[buffer.depth++];
  entry.key = kTorch ? begin.handle : event_id;
  entry.ordinal = ordinal;
  entry.async = (begin.flags & kAsync) != 0;
  return ordinal != 0 ? event_id : 0;
}

// The range is not the innermost: it ended out of order, or began on another thread.
[[gnu::noinline]] inline void end_out_of_order(Globals& globals, ThreadBuffer& buffer, uint64_t key, uint64_t begin_thread_id,
                                               uint32_t flags, Text error) {
  for (uint32_t index = buffer.depth; index-- > 0;) {
    if (buffer.stack[index].key != key) continue;
    const uint64_t ordinal = index >= buffer.floor ? buffer.stack[index].ordinal : 0;
    remove_entry(buffer, index);
    if (ordinal != 0) put_end(globals, buffer, ordinal, flags, error);  // the drain knows what above it was open still
    return;
  }
  if (buffer.untracked > 0) {
    --buffer.untracked;
    return;
  }
  globals.remote_ends.push({key, begin_thread_id, read_ticks(globals.use_cycle_counter), buffer.number, flags | kAsync},
                           error.data, error.size);
}

// Looking around may wait for the GIL. Who can't do that has looked before.
enum LookAround : bool { kDoNotLookAround = false, kLookAround = true };

// Writes a mark (`name`) or a memory record (`name` is the device) of this moment. Returns its event id, or 0 without room.
inline uint64_t put_point(Globals& globals, ThreadBuffer& buffer, RecordKind kind, Text name, int64_t nbytes, LookAround look) {
  if (!catch_up(globals, buffer)) return 0;
  const bool base = is_base(buffer);
  if (base && look == kLookAround) look_around(globals, buffer);
  const uint64_t ends = uint64_t{kEndWords} * buffer.open_recorded;
  if (!buffer.has_room(kMemoryWords + extra_words(buffer, {}) + 1 + words_of(name.size) + ends)) return count_dropped(buffer), 0;
  put_extras(buffer, {});
  const uint64_t head = header(kind, 0, base ? kBaseBegin : 0, put_named(buffer, name), 0);
  const uint64_t ticks = read_ticks(globals.use_cycle_counter);
  const uint64_t ordinal = buffer.ordinal.load(std::memory_order_relaxed) + 1;
  buffer.ordinal.store(ordinal, std::memory_order_relaxed);
  if (kind == kMemory) {
    buffer.put_and_publish({head, ticks, static_cast<uint64_t>(nbytes)});
  } else {
    buffer.put_and_publish({head, ticks});
  }
  return make_event_id(buffer.number, ordinal);
}

// From here on the thread works for that profiler run.
inline void set_profiler(ThreadBuffer& buffer, uint32_t profiler) {
  buffer.profiler = profiler;
  if (profiler == buffer.profiler_sent) return;
  buffer.profiler_sent = profiler;
  buffer.unsent |= kProfilerUnsent;
}

// Closes the range that was begun with `key`, from any thread. `begin_thread_id`: RecordFunction's id of the thread that
// began it, 0 where the key is an event id (which names the thread itself).
[[gnu::always_inline]] inline void end_range(Globals& globals, ThreadBuffer& buffer, uint64_t key, uint64_t begin_thread_id, uint32_t flags,
                      Text error) {
  if (__builtin_expect(buffer.depth == 0 || buffer.stack[buffer.depth - 1].key != key, 0)) {
    end_out_of_order(globals, buffer, key, begin_thread_id, flags, error);
    return;
  }
  const uint32_t index = --buffer.depth;
  const uint64_t ordinal = buffer.stack[index].ordinal;
  if (__builtin_expect(index < buffer.floor, 0)) {
    buffer.floor = index;
    return;
  }
  if (ordinal != 0) put_end(globals, buffer, ordinal, flags, error);
}

}  // namespace recfn
