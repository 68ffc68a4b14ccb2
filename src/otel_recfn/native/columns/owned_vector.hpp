// A vector that somebody else owns from here on, whatever its items are. It needs no memory beside the vector's own.
#pragma once
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace recfn {

class OwnedVector {
 public:
  template <typename T>
  OwnedVector(std::vector<T>&& items) noexcept  // NOLINT(google-explicit-constructor)
      : data_(items.data()), bytes_(items.size() * sizeof(T)), relocate_(&relocate<T>) {
    static_assert(sizeof(std::vector<T>) == sizeof(place_), "vectors of all types are laid out alike");
    new (place_) std::vector<T>(std::move(items));
  }
  OwnedVector(OwnedVector&& other) noexcept : data_(other.data_), bytes_(other.bytes_), relocate_(other.relocate_) {
    relocate_(other.place_, place_);
    other.data_ = nullptr, other.bytes_ = 0;
  }
  OwnedVector(const OwnedVector&) = delete;
  OwnedVector& operator=(const OwnedVector&) = delete;
  OwnedVector& operator=(OwnedVector&&) = delete;
  ~OwnedVector() { relocate_(place_, nullptr); }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  // Moves the vector there, which leaves an empty one; without a place it ends.
  template <typename T>
  static void relocate(void* from, void* to) {
    auto* items = static_cast<std::vector<T>*>(from);
    if (to == nullptr) {
      items->~vector();
    } else {
      new (to) std::vector<T>(std::move(*items));
    }
  }

  void* data_;
  size_t bytes_;
  void (*relocate_)(void* from, void* to);
  alignas(std::vector<char>) unsigned char place_[sizeof(std::vector<char>)];
};

}  // namespace recfn
