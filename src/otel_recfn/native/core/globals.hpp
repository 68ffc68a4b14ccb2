// The process's switches, which every begin reads.
//
// Compiled both into the recorder and into the torch observer, which compare the layout (core_api.hpp) before they touch it.
#pragma once
#include <atomic>
#include <cstdint>

#include "core/remote_ends.hpp"
#include "core/task_view.hpp"

namespace recfn {

struct ThreadBuffer;

// Owned by registry.cpp.
struct Globals {
  // Bit per selected scope and kRecordingBit while recording; kObservedBit while a range observer is set.
  std::atomic<uint32_t> recording{0};
  std::atomic<uint32_t> generation{1};  // one per start after a stop
  std::atomic<uint8_t> sampled_alone{0};   // 1 (a bit of context versions): nobody wants what lies in a span that is not sampled
  bool use_cycle_counter = false;
  std::atomic<uint32_t> short_way{UINT32_MAX};  // `generation`, while calls may begin the short way (known_calls.hpp); else none
  std::atomic<uint64_t> dropped_without_buffer{0};  // begins in threads that got no buffer, for want of memory
  // Bindings: what changes with what the calling thread's task sees (no GIL needed), and that itself (may take the GIL).
  std::atomic<uint64_t (*)(const ThreadBuffer&)> context_version{nullptr};
  std::atomic<void (*)(ThreadBuffer&, TaskView&)> read_context{nullptr};
  // Torch observer: the launch that PyTorch's state of the calling thread has, null where it has none; and a change of it, which
  // returns an entry that nobody needs any more.
  std::atomic<const Launch* (*)()> launch{nullptr};
  std::atomic<void* (*)(void*& carried, const Launch&)> hand_on{nullptr};
  // Bindings: hands on what the thread has `to_hand_on`; gives a launch's entry back. Need no GIL.
  std::atomic<void (*)(ThreadBuffer&)> hand_on_now{nullptr};
  std::atomic<void (*)(void*)> let_go{nullptr};
  // Torch observer: how many frames TorchScript's interpreter has in the calling thread.
  std::atomic<uint64_t (*)()> torchscript_frames{nullptr};
  std::atomic<bool> frames_move{false};  // a TorchScript function has run in a thread that works for another
  // Torch observer: RecordFunction's logical id of the calling thread, the default node id and its change, and a thread's farewell.
  std::atomic<uint64_t (*)()> logical_thread_id{nullptr};
  std::atomic<int64_t (*)()> default_node_id{nullptr};
  std::atomic<void (*)(int64_t)> set_default_node_id{nullptr};
  std::atomic<void (*)(ThreadBuffer&)> on_thread_exit{nullptr};
  // Torch observer: PyTorch's switch of the calling thread, which is the thread's one switch once PyTorch is observed.
  std::atomic<bool (*)()> is_enabled{nullptr};
  std::atomic<void (*)(bool)> enable{nullptr};
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

// After a change of what it depends on, so that calls read one number for all of that.
inline void turn_short_way(Globals& globals) {
  const bool recording = (globals.recording.load() & kRecordingBit) != 0;
  const bool has_contexts = globals.context_version.load() != nullptr;
  const bool is_open = recording && has_contexts && globals.use_cycle_counter;
  globals.short_way.store(is_open ? globals.generation.load() : UINT32_MAX);
}

}  // namespace recfn
