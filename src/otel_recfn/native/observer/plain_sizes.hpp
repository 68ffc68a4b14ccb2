// The sizes of a tensor as plain numbers. Nested, symbolic and undefined tensors have none.
#pragma once
#include <ATen/core/ivalue.h>

#include "pytorch/features.hpp"

namespace recfn {

inline constexpr auto has_plain_sizes = [](const auto& tensor) -> decltype(
    tensor.defined() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !tensor.is_nested()) {
  return tensor.defined() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !tensor.is_nested();
};

constexpr bool kHasPlainSizes = compiles<const c10::IValue&>([](const auto& value) -> decltype(
    value.isTensor(), has_plain_sizes(value.toTensor()), c10::IntArrayRef(value.toTensor().sizes()), void()) {});

}  // namespace recfn
