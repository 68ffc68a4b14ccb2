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
thread_local uint64_t tls_number RECFN_FAST_TLS = 0;  // 0: nobody asked yet
thread_local bool tls_without RECFN_FAST_TLS =
    false;  // there was no memory for a buffer, or the thread's destructors have run

constexpr uint64_t kMinBufferBytes = 4096;

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
  const uint32_t rings = buffer->num_rings.load();
  for (uint32_t ring = buffer->oldest_ring; ring < rings; ++ring)
    unmap_ring(total_bytes, buffer->rings[ring]);
  munmap(buffer, sizeof(ThreadBuffer));
  total_bytes.fetch_sub(kCountedBytes);
}

// A buffer with its first ring; null when there is no memory for it.
ThreadBuffer* map_buffer(uint64_t max_capacity) {
  void* memory = map_memory(total_bytes, sizeof(ThreadBuffer), kCountedBytes);
  if (memory == nullptr) return nullptr;
  auto* buffer = new (memory) ThreadBuffer;
  buffer->max_capacity = max_capacity, buffer->shared = &shared_by_rings;
  buffer->capacity = std::min(max_capacity, kFirstRing);
  buffer->words = map_ring(total_bytes, buffer->capacity);
  buffer->rings[0] = {buffer->words, buffer->capacity, 0};
  buffer->num_rings.store(buffer->words != nullptr ? 1 : 0);
  if (buffer->words != nullptr) return buffer;
  release(buffer);
  return nullptr;
}

void identify(ThreadBuffer& buffer, uint64_t number) {
  buffer.number = number;
  buffer.thread_id.store(number);
  buffer.native_id = native_thread_id();
  buffer.ident = reinterpret_cast<uint64_t>(pthread_self());
}

// pthread keys are destroyed after C++ thread_locals, so that ranges in those destructors are still
// recorded.
void on_thread_end(void* buffer) {
  auto& ended = *static_cast<ThreadBuffer*>(buffer);
  if (const auto farewell = globals().on_thread_exit.load()) farewell(ended);
  if (void* entry = std::exchange(ended.to_hand_on, nullptr)) globals().let_go.load()(entry);
  tls_without = true;
  tls_buffer = nullptr;
  ended.ended.store(true, std::memory_order_release);
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

Globals& globals() {
  static Globals instance;
  return instance;
}

Registry& registry() {
  static Registry* instance =
      new Registry;  // never destroyed: threads may outlive static destructors
  return *instance;
}

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

ThreadBuffer* Registry::create() {
  prepare_for_exceptions();
  std::lock_guard lock(mutex_);
  tls_without = true;  // until it has one
  ThreadBuffer* buffer = map_buffer(buffer_bytes_ / 8);
  if (buffer == nullptr) return nullptr;
  try {
    buffers_.push_back(buffer);
  } catch (const std::bad_alloc&) {
    return release(buffer), nullptr;
  }
  pthread_setspecific(end_key(), buffer);
  identify(*buffer, thread_number());
  tls_without = false;
  return tls_buffer = buffer;
}

ThreadBuffer* Registry::stand_in(uint64_t ident, uint64_t native_id) {
  std::lock_guard lock(mutex_);
  buffers_.reserve(buffers_.size() + 1);
  const auto is_of_thread = [ident](const ThreadBuffer* buffer) {
    return buffer->ident == ident && !buffer->ended.load();
  };
  const auto own = std::find_if(buffers_.begin(), buffers_.end(), is_of_thread);
  ThreadBuffer* buffer = map_buffer(buffer_bytes_ / 8);
  if (buffer == nullptr) return nullptr;
  buffer->number = new_number(), buffer->ident = ident, buffer->native_id = native_id;
  buffer->thread_id.store(own != buffers_.end() ? (*own)->thread_id.load() : buffer->number);
  buffers_.push_back(buffer);
  enter_generation(*buffer, globals().generation.load());
  return buffer;
}

std::vector<ThreadBuffer*> Registry::snapshot() {
  std::lock_guard lock(mutex_);
  return buffers_;
}

uint64_t Registry::end_calls(ThreadBuffer* buffer) {
  std::lock_guard lock(mutex_);
  if (std::find(buffers_.begin(), buffers_.end(), buffer) == buffers_.end()) return 0;
  buffer->context_stale |= kCallsEnded;
  const uint64_t ordinal = buffer->leaf.load(std::memory_order_relaxed);
  return ordinal != 0 ? make_event_id(buffer->number, ordinal) : 0;
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
    if (buffer->max_capacity.load() < buffer_bytes_ / 8)
      buffer->max_capacity.store(buffer_bytes_ / 8);
  }
}

NotRecorded Registry::not_recorded() {
  std::lock_guard lock(mutex_);
  NotRecorded sum = retired_;
  sum.dropped += globals().dropped_without_buffer.load(std::memory_order_relaxed);
  for (const ThreadBuffer* buffer : buffers_) sum.add(*buffer);
  return sum;
}

void Registry::after_fork_in_child() {
  for (ThreadBuffer* buffer : buffers_) {
    if (buffer != tls_buffer) release(buffer);
  }
  buffers_.clear();
  retired_ = {};
  globals().dropped_without_buffer.store(0);
  new (&globals().remote_ends) RemoteEnds;
  tls_number = 0;
  if (ThreadBuffer* mine = tls_buffer) {
    mine->published.store(mine->head), mine->consumed.store(mine->head);
    mine->ordinal.store(0), mine->dropped.store(0), mine->unsampled.store(0);
    mine->closed_elsewhere.head.store(0), mine->closed_elsewhere.tail.store(0);
    std::fill(std::begin(mine->names), std::end(mine->names), NameSlot{});
    mine->has_logical_id = mine->name_noted = mine->met = false;
    enter_generation(*mine, mine->generation);
    mine->profiler_sent = mine->profiler;
    mine->unsent = kGenerationUnsent | (mine->context == Context{} ? 0 : kContextUnsent) |
                   (mine->profiler == 0 ? 0 : kProfilerUnsent);
    identify(*mine, thread_number());
    buffers_.push_back(mine);
  }
  mutex_.unlock();
}

}  // namespace recfn
