#include "core/registry.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <new>
#include <utility>

#include "core/globals.hpp"
#include "core/thread_buffer.hpp"

namespace recfn {
namespace {

thread_local ThreadBuffer* tls_buffer RECFN_FAST_TLS = nullptr;
thread_local uint64_t tls_number RECFN_FAST_TLS = 0;      // 0: nobody asked yet
thread_local uint64_t tls_logical_id RECFN_FAST_TLS = 0;  // the same
// There was no memory for a buffer, or the thread's destructors have run.
thread_local bool tls_without RECFN_FAST_TLS = false;

constexpr uint64_t kMinBufferBytes = 4096;
constexpr uint64_t kBeyondTorchs = uint64_t{1} << 31;  // PyTorch counts threads from 1

uint64_t native_thread_id() {
#if defined(__linux__)
  return static_cast<uint64_t>(syscall(SYS_gettid));
#else
  uint64_t id = 0;
  pthread_threadid_np(nullptr, &id);
  return id;
#endif
}

SharedByRings shared_by_rings;
std::atomic<uint64_t>& total_bytes = shared_by_rings.total_bytes;

// What a buffer counts for. Deeper entries of the stack become memory only in threads that nest so
// deep.
constexpr uint64_t kCountedBytes =
    sizeof(ThreadBuffer) - (kMaxDepth - kUsualDepth) * sizeof(OpenEntry);

void release(ThreadBuffer* buffer) {
  const uint32_t rings = buffer->reading.num_rings.load();
  for (uint32_t ring = buffer->reading.oldest_ring; ring < rings; ++ring) {
    unmap_ring(total_bytes, buffer->reading.rings[ring]);
  }
  munmap(buffer, sizeof(ThreadBuffer));
  total_bytes.fetch_sub(kCountedBytes);
}

// A buffer with its first ring; null when there is no memory for it.
ThreadBuffer* map_buffer(uint64_t max_capacity) {
  void* memory = map_memory(total_bytes, sizeof(ThreadBuffer), kCountedBytes);
  if (memory == nullptr) return nullptr;
  auto* buffer = new (memory) ThreadBuffer;
  buffer->growth.max_capacity = max_capacity;
  buffer->growth.shared = &shared_by_rings;
  buffer->ring.capacity = std::min(max_capacity, kFirstRing);
  buffer->ring.words = map_ring(total_bytes, buffer->ring.capacity);
  buffer->reading.rings[0] = {buffer->ring.words, buffer->ring.capacity, 0};
  buffer->reading.num_rings.store(buffer->ring.words != nullptr ? 1 : 0);
  if (buffer->ring.words != nullptr) return buffer;
  release(buffer);
  return nullptr;
}

// pthread keys are destroyed after C++ thread_locals, so that ranges in those destructors are still
// recorded. What other keys' destructors do later in this thread gets no buffer any more.
void on_thread_end(void* buffer) {
  auto& ended = *static_cast<ThreadBuffer*>(buffer);
  // The observer keeps a pointer to the buffer of its own, which is stale from here on.
  if (const auto farewell = observer_hooks(globals()).on_thread_exit) farewell(ended);
  if (void* entry = std::exchange(ended.propagation.pending, nullptr)) {
    recorder_hooks(globals()).release(entry);
  }
  tls_without = true;
  tls_buffer = nullptr;
  // Last, and release, for the drain's acquire: the drain that sees it may free the buffer as soon
  // as all of it is read, and it reads all that the thread has written.
  ended.reading.ended.store(true, std::memory_order_release);
}

// What the forking thread has recorded the parent drains. The child's drain knows nothing of the
// ring: neither names nor what was written before the last begin. So all of that is written anew,
// and what is open belongs to an earlier recording.
void empty_in_child(ThreadBuffer& buffer) {
  buffer.reading.published.store(buffer.ring.head);
  buffer.reading.consumed.store(buffer.ring.head);
  buffer.ordinal.store(0);
  buffer.counts.dropped.store(0);
  buffer.counts.unsampled.store(0);
  buffer.ended_by_others.head.store(0);
  buffer.ended_by_others.tail.store(0);
  std::fill(std::begin(buffer.names), std::end(buffer.names), NameSlot{});
  buffer.identity.is_named = false;
  buffer.reading.is_known = false;
  enter_epoch(buffer, buffer.recording.epoch);
  buffer.preceding.profiler = buffer.profiler;
  buffer.recording.unsent = kEpochUnsent;
  if (!(buffer.preceding.context == Context{})) buffer.recording.unsent |= kContextUnsent;
  if (buffer.profiler != 0) buffer.recording.unsent |= kProfilerUnsent;
}

pthread_key_t end_key() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    pthread_key_create(&made, on_thread_end);
    return made;
  }();
  return key;
}

}  // namespace

ThreadBuffer* Registry::current() {
  if (__builtin_expect(tls_buffer != nullptr, 1)) return tls_buffer;
  return tls_without ? nullptr : create();
}

DrainWaker& Registry::waker() { return shared_by_rings.waker; }

ThreadBuffer* Registry::existing() const { return tls_buffer; }

uint64_t Registry::thread_number() {
  if (tls_number == 0) tls_number = new_number();
  return tls_number;
}

// Two numberings meet where torch is imported late. So that no two threads have one id, and that of
// a living thread never changes:
//
//   a thread that has its number as its id     keeps it; PyTorch's is noted as it records
//   one that PyTorch calls by such a number    gets one beyond all of PyTorch's, also noted
//   all others                                 have PyTorch's
//
// What is noted translates ids that PyTorch itself has kept: of the forward operator's thread, and
// of the thread in which a range began that ends elsewhere.
uint64_t Registry::logical_id() {
  if (tls_logical_id != 0) return tls_logical_id;
  const std::lock_guard lock(ids_mutex_);
  const auto torchs = globals().logical_thread_id.load();
  const uint64_t torchs_id = torchs != nullptr ? torchs() : 0;
  const bool is_free = torchs_id > last_own_id_;
  tls_logical_id = is_free ? torchs_id : own_id(thread_number());
  if (torchs_id != 0 && !is_free) note_other_id(torchs_id, tls_logical_id);
  return tls_logical_id;
}

// An id that is not PyTorch's.
uint64_t Registry::own_id(uint64_t number) {
  if (globals().logical_thread_id.load() != nullptr) return kBeyondTorchs | number;
  last_own_id_ = std::max(last_own_id_, number);
  return number;
}

void Registry::note_other_id(uint64_t torchs_id, uint64_t logical_id) {
  try {
    other_ids_.try_emplace(torchs_id, logical_id);
    has_other_ids_.store(true, std::memory_order_release);
  } catch (const std::bad_alloc&) {  // backward ranges of its forward ones are not linked to them
  }
}

void Registry::follow_torch(uint64_t (*logical_thread_id)()) {
  const std::lock_guard lock(ids_mutex_);
  globals().logical_thread_id.store(logical_thread_id);
  logical_thread_id();  // the calling thread is mostly the first of either numbering
}

void Registry::note_torchs_id(ThreadBuffer& buffer) {
  const uint64_t torchs_id = globals().logical_thread_id.load()();
  const uint64_t logical_id = buffer.identity.thread_id.load(std::memory_order_relaxed);
  if (torchs_id == logical_id) return;
  const std::lock_guard lock(ids_mutex_);
  note_other_id(torchs_id, logical_id);
}

uint64_t Registry::logical_id_of(uint64_t torchs_id) {
  if (!has_other_ids_.load(std::memory_order_acquire)) return torchs_id;
  const std::lock_guard lock(ids_mutex_);
  const auto found = other_ids_.find(torchs_id);
  return found != other_ids_.end() ? found->second : torchs_id;
}

void Registry::identify(ThreadBuffer& buffer) {
  buffer.number = thread_number();
  buffer.identity.thread_id.store(logical_id());
  buffer.identity.native_id = native_thread_id();
  buffer.identity.ident = reinterpret_cast<uint64_t>(pthread_self());
}

ThreadBuffer* Registry::create() {
  prepare_for_exceptions();  // `push_back` below may throw the thread's first one
  std::lock_guard lock(mutex_);
  tls_without = true;  // until it has one
  ThreadBuffer* buffer = map_buffer(buffer_bytes_ / 8);
  if (buffer == nullptr) return nullptr;
  try {
    buffers_.push_back(buffer);
  } catch (const std::bad_alloc&) {
    release(buffer);
    return nullptr;
  }
  pthread_setspecific(end_key(), buffer);
  identify(*buffer);
  tls_without = false;
  tls_buffer = buffer;
  return buffer;
}

ThreadBuffer* Registry::blocked_buffer(uint64_t ident, uint64_t native_id) {
  std::lock_guard lock(mutex_);
  // Before the buffer is mapped: what could throw afterwards would lose it.
  buffers_.reserve(buffers_.size() + 1);
  const auto is_of_thread = [ident](const ThreadBuffer* buffer) {
    return buffer->identity.ident == ident && !buffer->reading.ended.load();
  };
  const auto own = std::find_if(buffers_.begin(), buffers_.end(), is_of_thread);
  ThreadBuffer* buffer = map_buffer(buffer_bytes_ / 8);
  if (buffer == nullptr) return nullptr;
  buffer->number = new_number();
  buffer->identity.ident = ident;
  buffer->identity.native_id = native_id;
  if (own != buffers_.end()) {
    buffer->identity.thread_id.store((*own)->identity.thread_id.load());
  } else {
    const std::lock_guard ids_lock(ids_mutex_);
    buffer->identity.thread_id.store(own_id(buffer->number));
  }
  buffers_.push_back(buffer);
  enter_epoch(*buffer, globals().epoch.load());
  return buffer;
}

std::vector<ThreadBuffer*> Registry::snapshot() {
  std::lock_guard lock(mutex_);
  return buffers_;
}

void Registry::end_calls(ThreadBuffer* buffer) {
  std::lock_guard lock(mutex_);
  if (std::find(buffers_.begin(), buffers_.end(), buffer) != buffers_.end()) {
    buffer->refresh.stale |= kCallsEnded;
  }
}

void Registry::refresh_contexts(uint64_t threads) {
  std::lock_guard lock(mutex_);
  for (ThreadBuffer* buffer : buffers_) {
    if ((threads & thread_bit(buffer->number)) != 0) buffer->refresh.stale |= kContextStale;
  }
}

void Registry::retire(ThreadBuffer* buffer) {
  std::lock_guard lock(mutex_);
  buffers_.erase(std::find(buffers_.begin(), buffers_.end(), buffer));
  retired_.add(*buffer);
  release(buffer);
}

void Registry::set_buffer_bytes(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  buffer_bytes_ = kMinBufferBytes;
  while (buffer_bytes_ < bytes) buffer_bytes_ *= 2;
  for (ThreadBuffer* buffer : buffers_) {
    if (buffer->growth.max_capacity.load() < buffer_bytes_ / 8) {
      buffer->growth.max_capacity.store(buffer_bytes_ / 8);
    }
  }
}

NotRecorded Registry::not_recorded() {
  std::lock_guard lock(mutex_);
  NotRecorded sum = retired_;
  sum.dropped += globals().dropped_without_buffer.load(std::memory_order_relaxed);
  for (const ThreadBuffer* buffer : buffers_) sum.add(*buffer);
  return sum;
}

// A child inherits locks that other threads held, and nobody there would release them: so the
// forking thread holds both while the process is copied.
void Registry::before_fork() {
  mutex_.lock();
  ids_mutex_.lock();
}

void Registry::after_fork_in_parent() {
  ids_mutex_.unlock();
  mutex_.unlock();
}

void Registry::after_fork_in_child() {
  ids_mutex_.unlock();
  for (ThreadBuffer* buffer : buffers_) {
    if (buffer != tls_buffer) release(buffer);
  }
  buffers_.clear();
  retired_ = {};
  globals().dropped_without_buffer.store(0);
  // A thread of the parent's may have taken a cell, which nobody here would write: the queue would
  // end there for ever.
  new (&globals().remote_ends) RemoteEnds;
  // Ordinals begin anew: with its number in the parent the thread would give event ids that the
  // parent has given, too.
  tls_number = 0;
  if (ThreadBuffer* mine = tls_buffer) {
    empty_in_child(*mine);
    identify(*mine);
    buffers_.push_back(mine);
  }
  mutex_.unlock();
}

}  // namespace recfn
