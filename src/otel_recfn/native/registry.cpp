#include "registry.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <random>

#include "fast_tls.hpp"

namespace recfn {
namespace {

thread_local ThreadBuffer* tls_buffer RECFN_FAST_TLS = nullptr;
thread_local uint64_t tls_number RECFN_FAST_TLS = 0;   // 0: nobody asked yet
thread_local bool tls_without RECFN_FAST_TLS = false;  // this thread has no buffer and won't get one

constexpr uint64_t kMinBufferBytes = 4096;
constexpr uint64_t kMaxTotalBytes = uint64_t{4} << 30;  // of address space; pages are taken only when written

uint64_t native_thread_id() {
#if defined(__linux__)
  return static_cast<uint64_t>(syscall(SYS_gettid));
#else
  uint64_t id = 0;
  pthread_threadid_np(nullptr, &id);
  return id;
#endif
}

uint64_t name_seed() {
  static const uint64_t seed = (uint64_t{std::random_device{}()} << 32 | std::random_device{}()) | 1;
  return seed;
}

uint64_t mapping_bytes(const ThreadBuffer& buffer) { return sizeof(ThreadBuffer) + buffer.capacity * 8; }

// What counts against the limit: an ended thread's buffer grows no more, so only the pages it has written.
uint64_t held_bytes(const ThreadBuffer& buffer) {
  if (!buffer.ended.load(std::memory_order_acquire)) return mapping_bytes(buffer);
  return sizeof(ThreadBuffer) + std::min(buffer.capacity, buffer.published.load(std::memory_order_relaxed)) * 8;
}

void identify(ThreadBuffer& buffer, uint64_t number) {
  buffer.number = number;
  buffer.thread_id.store(number);
  buffer.native_id = native_thread_id();
  buffer.ident = reinterpret_cast<uint64_t>(pthread_self());
}

// pthread keys are destroyed after C++ thread_locals, so that ranges in those destructors are still recorded.
void on_thread_end(void* buffer) {
  if (const auto farewell = globals().on_thread_exit.load()) farewell();
  tls_without = true;
  tls_buffer = nullptr;
  static_cast<ThreadBuffer*>(buffer)->ended.store(true, std::memory_order_release);
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
  static Registry* instance = new Registry;  // never destroyed: threads may outlive static destructors
  return *instance;
}

ThreadBuffer* Registry::current() {
  if (__builtin_expect(tls_buffer != nullptr, 1)) return tls_buffer;
  return tls_without ? nullptr : create();
}

ThreadBuffer* Registry::existing() const { return tls_buffer; }

uint64_t Registry::thread_number() {
  if (tls_number == 0) tls_number = next_number_.fetch_add(1);
  return tls_number;
}

ThreadBuffer* Registry::create() {
  std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const ThreadBuffer* buffer : buffers_) total += held_bytes(*buffer);
  void* memory = MAP_FAILED;
  if (total + buffer_bytes_ <= kMaxTotalBytes) {
    memory = mmap(nullptr, sizeof(ThreadBuffer) + buffer_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  tls_without = memory == MAP_FAILED;
  if (tls_without) return nullptr;
  auto* buffer = new (memory) ThreadBuffer;
  buffer->words = reinterpret_cast<uint64_t*>(static_cast<char*>(memory) + sizeof(ThreadBuffer));
  buffer->capacity = buffer_bytes_ / 8;
  buffer->name_seed = name_seed();
  identify(*buffer, thread_number());
  buffers_.push_back(buffer);
  pthread_setspecific(end_key(), buffer);
  tls_buffer = buffer;
  return buffer;
}

std::vector<ThreadBuffer*> Registry::snapshot() {
  std::lock_guard lock(mutex_);
  return buffers_;
}

void Registry::retire(ThreadBuffer* buffer) {
  std::lock_guard lock(mutex_);
  retired_recorded_ += buffer->ordinal.load();
  retired_dropped_ += buffer->dropped.load();
  buffers_.erase(std::find(buffers_.begin(), buffers_.end(), buffer));
  munmap(buffer, mapping_bytes(*buffer));
}

void Registry::set_buffer_bytes(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  buffer_bytes_ = kMinBufferBytes;
  while (buffer_bytes_ < bytes) buffer_bytes_ *= 2;
}

uint64_t Registry::recorded() {
  std::lock_guard lock(mutex_);
  uint64_t sum = retired_recorded_;
  for (const ThreadBuffer* buffer : buffers_) sum += buffer->ordinal.load(std::memory_order_relaxed);
  return sum;
}

uint64_t Registry::dropped() {
  std::lock_guard lock(mutex_);
  uint64_t sum = retired_dropped_ + globals().dropped_without_buffer.load(std::memory_order_relaxed);
  for (const ThreadBuffer* buffer : buffers_) sum += buffer->dropped.load(std::memory_order_relaxed);
  return sum;
}

void Registry::after_fork_in_child() {
  for (ThreadBuffer* buffer : buffers_) {
    if (buffer != tls_buffer) munmap(buffer, mapping_bytes(*buffer));
  }
  buffers_.clear();
  retired_recorded_ = retired_dropped_ = 0;
  globals().dropped_without_buffer.store(0);
  globals().remote_ends.reset();
  tls_number = 0;
  if (ThreadBuffer* mine = tls_buffer) {
    mine->head = mine->tail_seen = 0;
    mine->published.store(0), mine->consumed.store(0);
    mine->ordinal.store(0), mine->dropped.store(0);
    mine->closed_elsewhere.head.store(0), mine->closed_elsewhere.tail.store(0);
    std::fill(std::begin(mine->names), std::end(mine->names), NameSlot{});
    mine->has_logical_id = mine->name_noted = mine->met = false;
    enter_generation(*mine, mine->generation);
    mine->profiler_sent = mine->profiler;
    mine->unsent = (mine->context == Context{} ? 0 : kContextUnsent) | (mine->profiler == 0 ? 0 : kProfilerUnsent);
    identify(*mine, thread_number());
    buffers_.push_back(mine);
  }
  mutex_.unlock();
}

}  // namespace recfn
