// A thread's stack of open calls, on which a call is put without a call of ours where there is room.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace recfn {

struct OpenCall {
  uint64_t entry;     // as ThreadCalls says
  const void* frame;  // of a Python call, which tells it from other open ones: CPython's frame or its frame object; of C's null
};

class CallStack {
 public:
  CallStack() = default;
  CallStack(const CallStack&) = delete;
  CallStack& operator=(const CallStack&) = delete;

  bool empty() const { return size() == 0; }
  size_t size() const { return static_cast<size_t>(end_ - first_) - 1; }
  bool is_full() const { return end_ == limit_; }

  // Whether it is open to calls that begin the short way, and has room for one: one comparison for both.
  bool takes_next() const { return end_ < gate_; }
  void open() { gate_ = limit_, is_open_ = true; }
  void shut() { gate_ = nullptr, is_open_ = false; }

  // Where none is open, one that is no call: neither of C nor of any frame.
  OpenCall& back() { return end_[-1]; }
  const OpenCall& back() const { return end_[-1]; }
  OpenCall& operator[](size_t at) { return first_[at + 1]; }

  // Where it isn't full.
  void push(OpenCall call) { *end_++ = call; }
  // Where it isn't empty.
  void pop() { --end_; }
  void clear() { end_ = first_ + 1; }

  void grow() {
    const size_t used = size() + 1, room = used < kFirstRoom ? kFirstRoom : 2 * used;
    std::unique_ptr<OpenCall[]> larger(new OpenCall[room]);
    std::memcpy(larger.get(), first_, used * sizeof(OpenCall));
    held_ = std::move(larger);
    first_ = held_.get(), end_ = first_ + used, limit_ = first_ + room;
    if (is_open_) open();
  }

 private:
  static constexpr size_t kFirstRoom = 64;

  OpenCall none_{0, this};
  std::unique_ptr<OpenCall[]> held_;
  OpenCall *first_ = &none_, *end_ = first_ + 1, *limit_ = end_;
  OpenCall* gate_ = limit_;  // null while it is shut
  bool is_open_ = true;
};

}  // namespace recfn
