// An operator's inputs as shape words (see shapes.hpp), on the stack of its thread: no allocation.
#pragma once
#include <ATen/record_function.h>

#include <cstdint>

#include "core/record.hpp"
#include "core/shapes.hpp"

namespace recfn {

// The largest size up to `limit` that does not cut a character.
inline size_t cut_utf8(const char* text, size_t limit) {
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return limit;
}

class ShapeWords {
 public:
  void add_inputs(const at::RecordFunction& fn) {
    for (const c10::IValue& input : fn.inputs()) add(input);
  }
  const uint64_t* data() const { return words_; }
  uint32_t size() const { return size_; }

 private:
  static constexpr uint32_t kMaxDims = 64;

  void add(const c10::IValue& input) {
    if (input.isTensor()) return add_tensor(input.toTensor());
    if (input.isTensorList()) return add_list(input);
    put(shape_tag(input.isScalar() ? kScalar : kOther, 0, 0));
  }

  void add_list(const c10::IValue& input) {
    put(shape_tag(kListBegin, 0, 0));
    const auto list = input.toTensorList();
    for (const at::Tensor& tensor : list) add_tensor(tensor);
    if (size_ < kMaxShapeWords) words_[size_++] = shape_tag(kListEnd, 0, 0);
  }

  // Nested, symbolic and undefined tensors have no plain sizes.
  void add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return put(shape_tag(kOther, 0, 0));
    const auto dtype = static_cast<uint64_t>(tensor.scalar_type());
    if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || tensor.is_nested()) return put(shape_tag(kTensor, dtype, 0));
    const auto sizes = tensor.sizes();
    const auto dims = static_cast<uint32_t>(sizes.size() < kMaxDims ? sizes.size() : kMaxDims);
    if (size_ + 1 + dims + kReserve > kMaxShapeWords) return truncate();
    words_[size_++] = shape_tag(kTensor, dtype, dims);
    for (uint32_t dim = 0; dim < dims; ++dim) words_[size_++] = static_cast<uint64_t>(sizes[dim]);
  }

  void put(uint64_t tag) {
    if (size_ + 1 + kReserve > kMaxShapeWords) return truncate();
    words_[size_++] = tag;
  }

  void truncate() {
    if (!truncated_) words_[size_++] = shape_tag(kTruncated, 0, 0);
    truncated_ = true;
  }

  static constexpr uint32_t kReserve = 2;  // for the mark of truncation and a list's end
  uint64_t words_[kMaxShapeWords];
  uint32_t size_ = 0;
  bool truncated_ = false;
};

}  // namespace recfn
