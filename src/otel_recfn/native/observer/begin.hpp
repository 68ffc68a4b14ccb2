// A range's begin, with all that was asked for.
#pragma once
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#if __has_include(<torch/csrc/jit/runtime/interpreter.h>)
#include <torch/csrc/jit/runtime/interpreter.h>
#endif

#include "core/record.hpp"
#include "core/shapes.hpp"
#include "observer/launch.hpp"
#include "pytorch/features.hpp"

namespace recfn {

// The sizes of a tensor as plain numbers. Nested, symbolic and undefined tensors have none.
inline bool has_plain_sizes(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         !tensor.is_nested();
}

// An operator's inputs as shape words (see shapes.hpp), on the stack of its thread: no allocation.

template <typename Value>
Scalar scalar_of(const Value& value) {
  if (value.isInt()) return {kInteger, 1, {static_cast<uint64_t>(value.toInt())}};
  if (value.isDouble()) return {kReal, 1, {bits_of(value.toDouble())}};
  if (value.isBool()) return {kBoolean, 1, {value.toBool()}};
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return {kComplex, 2, {bits_of(number.real()), bits_of(number.imag())}};
  }
  return {};  // a symbol
}

class ShapeWords {
 public:
  template <typename Inputs>
  void add_inputs(const Inputs& inputs) {
    for (const auto& input : inputs) add(input);
  }
  const uint64_t* data() const { return words_; }
  uint32_t size() const { return size_; }

 private:
  template <typename Value>
  void add(const Value& input) {
    if (input.isTensor()) return add_tensor(input.toTensor());
    if (input.isTensorList())
      return add_list(kListBegin, input.toTensorList(),
                      [this](const at::Tensor& one) { add_tensor(one); });
    if (input.isScalar()) return add_scalar(input);
    if (input.isList() && tells_numbers(input.toListRef())) {
      return add_list(kScalarsBegin, input.toListRef(),
                      [this](const auto& one) { add_scalar(one); });
    }
    put(shape_tag(kOther, 0, 0));
  }

  // Of a list of something else nothing is told, and of a long one.
  template <typename Values>
  static bool tells_numbers(const Values& values) {
    return values.empty() || (values.front().isScalar() && values.size() <= kMostScalars);
  }

  template <typename Values, typename Add>
  void add_list(ShapeKind kind, const Values& values, const Add& add_one) {
    put(shape_tag(kind, 0, 0));
    if (truncated_) return;
    for (const auto& value : values) add_one(value);
    words_[size_++] = shape_tag(kListEnd, 0, 0);
  }

  template <typename Value>
  void add_scalar(const Value& input) {
    const Scalar scalar = scalar_of(input);
    put(shape_tag(kScalar, scalar.kind, scalar.size), scalar.words, scalar.size);
  }

  template <typename Tensor>
  void add_tensor(const Tensor& tensor) {
    if (!tensor.defined()) return put(shape_tag(kOther, 0, 0));
    const auto dtype = static_cast<uint64_t>(tensor.scalar_type());
    if (!has_plain_sizes(tensor)) return put(shape_tag(kTensor, dtype, 0));
    const auto sizes = tensor.sizes();
    const auto dims = static_cast<uint32_t>(sizes.size() < kMaxDims ? sizes.size() : kMaxDims);
    put(shape_tag(kTensor, dtype, dims), sizes.data(), dims);
  }

  // Nothing is told after something was left out: it would stand in the place of another input.
  template <typename Word = uint64_t>
  void put(uint64_t tag, const Word* words = nullptr, uint32_t count = 0) {
    if (truncated_) return;
    truncated_ = size_ + 1 + count + kReserve > kMaxShapeWords;
    words_[size_++] = truncated_ ? shape_tag(kTruncated, 0, 0) : tag;
    for (uint32_t word = 0; !truncated_ && word < count; ++word)
      words_[size_++] = static_cast<uint64_t>(words[word]);
  }

  static constexpr uint32_t kMaxDims = 64;
  static constexpr uint32_t kReserve = 2;  // for the mark of truncation and a list's end
  uint64_t words_[kMaxShapeWords];
  uint32_t size_ = 0;
  bool truncated_ = false;
};

// Floating point operations of an operator, from its inputs: of the operators that torch.profiler
// counts (with_flops), and as it counts them (torch/csrc/profiler/util.cpp, computeFlops). Scalars
// such as addmm's alpha and beta are taken as 1.

namespace flops {

constexpr uint64_t kMultiplyAndAdd = 2;

// The plain sizes of an input; false where it is no tensor, or one without plain sizes.
template <typename Inputs>
bool sizes_of(const Inputs& inputs, size_t index, c10::IntArrayRef& sizes) {
  if (index >= inputs.size() || !inputs[index].isTensor()) return false;
  const auto& tensor = inputs[index].toTensor();
  if (!has_plain_sizes(tensor)) return false;
  sizes = tensor.sizes();
  return true;
}

inline uint64_t product(c10::IntArrayRef sizes) {
  uint64_t result = 1;
  for (const int64_t size : sizes) result *= static_cast<uint64_t>(size);
  return result;
}

template <typename Inputs>
uint64_t of_elements(const Inputs& inputs) {
  c10::IntArrayRef sizes;
  return sizes_of(inputs, 0, sizes) ? product(sizes) : 0;
}

// A matrix product of the inputs `first` and `first + 1`, or a batch of products: a multiplication
// and an addition for each pair of an element of the left one and a column of the right one.
template <typename Inputs>
uint64_t of_matrix_product(const Inputs& inputs, size_t first, bool batched) {
  c10::IntArrayRef left, right;
  if (!sizes_of(inputs, first, left) || !sizes_of(inputs, first + 1, right) || left.empty())
    return 0;
  const auto shared_by_both =
      static_cast<uint64_t>(left.back()) * static_cast<uint64_t>(batched ? left.front() : 1);
  return shared_by_both != 0 ? kMultiplyAndAdd * (product(left) / shared_by_both) * product(right)
                             : 0;
}

using Pair = std::array<int64_t, 2>;

// Padding may be a word ("same"), which torch.profiler doesn't count.
template <typename Value>
bool pair_of(const Value& input, Pair& pair) {
  if (!input.isIntList()) return false;
  const auto list = input.toIntList();
  if (list.size() != pair.size()) return false;
  pair = {list.get(0), list.get(1)};
  return true;
}

// Inputs of aten::conv2d: input, weight, bias, stride, padding, dilation, groups.
template <typename Inputs>
uint64_t of_conv2d(const Inputs& inputs) {
  c10::IntArrayRef input, kernel;
  Pair stride, padding, dilation;
  if (inputs.size() < 7 || !sizes_of(inputs, 0, input) || !sizes_of(inputs, 1, kernel)) return 0;
  if (input.size() != 4 || kernel.size() != 4 || !inputs[6].isInt() || inputs[6].toInt() == 0)
    return 0;
  if (!pair_of(inputs[3], stride) || !pair_of(inputs[4], padding) || !pair_of(inputs[5], dilation))
    return 0;
  if (stride[0] == 0 || stride[1] == 0) return 0;
  uint64_t products = static_cast<uint64_t>(input[0]) * static_cast<uint64_t>(input[1]) *
                      product(kernel) / (kernel[1] != 0 ? static_cast<uint64_t>(kernel[1]) : 1);
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t reach = dilation[axis] * (kernel[2 + axis] - 1) + 1;
    products *=
        static_cast<uint64_t>((input[2 + axis] + 2 * padding[axis] - reach) / stride[axis] + 1);
  }
  return kMultiplyAndAdd * products / static_cast<uint64_t>(inputs[6].toInt());
}

template <typename Inputs>
struct Counted {
  const char* name;
  uint64_t (*count)(const Inputs&);
};

template <typename Inputs>
constexpr Counted<Inputs> kCounted[] = {
    {"add", of_elements},
    {"mul", of_elements},
    {"mm", [](const Inputs& inputs) { return of_matrix_product(inputs, 0, false); }},
    {"addmm", [](const Inputs& inputs) { return of_matrix_product(inputs, 1, false); }},
    {"bmm", [](const Inputs& inputs) { return of_matrix_product(inputs, 0, true); }},
    {"baddbmm", [](const Inputs& inputs) { return of_matrix_product(inputs, 1, true); }},
    {"conv2d", of_conv2d},
};

}  // namespace flops

// 0 where the operator is not counted. May throw what reading the inputs throws.
template <typename Inputs>
int64_t count_flops(const char* name, const Inputs& inputs) {
  constexpr char kNamespace[] = "aten::";
  constexpr size_t kNamespaceSize = sizeof kNamespace - 1;
  if (std::strncmp(name, kNamespace, kNamespaceSize) != 0) return 0;
  for (const auto& counted : flops::kCounted<Inputs>) {
    if (std::strcmp(name + kNamespaceSize, counted.name) == 0)
      return static_cast<int64_t>(counted.count(inputs));
  }
  return 0;
}

// The call stack that led to an operator: TorchScript's where its interpreter runs, else Python's.

using TorchscriptFrames = decltype(torch::jit::currentCallstack());

inline constexpr auto place_of = [](const auto& frame) -> decltype(frame.range.file_line_col()) {
  return frame.range.file_line_col();
};

// A frame's `filename` is the name of its function.
inline constexpr auto function_of = [](const auto& frame) -> decltype(frame.filename.c_str()) {
  return frame.filename.c_str();
};

constexpr bool kHasTorchscriptStack = compiles<TorchscriptFrames&>(
    [](auto& frames) -> decltype(std::string(std::get<0>(*place_of(*frames.begin()))),
                                 size_t{std::get<1>(*place_of(*frames.begin()))},
                                 function_of(*frames.begin()), void()) {});

// As python_stack.hpp writes it: "file(line): function" a line, innermost first, whole lines only.
// Returns the bytes written.
template <typename Frames>
uint32_t write_frames(const Frames& frames, char* text, uint32_t size) {
  uint32_t used = 0;
  for (const auto& frame : frames) {  // innermost first
    const auto place = place_of(frame);
    if (!place) continue;
    const std::string& file = std::get<0>(*place);
    const size_t line = std::get<1>(*place);
    const int wanted = std::snprintf(text + used, size - used, "%s(%zu): %s\n", file.c_str(), line,
                                     function_of(frame));
    if (wanted <= 0 || static_cast<uint32_t>(wanted) >= size - used) break;
    used += static_cast<uint32_t>(wanted);
  }
  return used > 0 ? used - 1 : 0;  // without the last line's end
}

// How many frames the interpreter has in the calling thread; as if there were none where PyTorch
// doesn't tell.
template <bool kFound, typename Frames = TorchscriptFrames>
uint64_t count_torchscript_frames() {
  try {
    if constexpr (kFound) return Frames(torch::jit::currentCallstack()).size();
  } catch (...) {  // no memory
  }
  return 0;
}

// No text where that throws. Takes the GIL where Python knows the thread and TorchScript doesn't
// run in it.
template <bool kFound = kHasTorchscriptStack>
uint32_t operator_stack(const Globals& globals, char* text, uint32_t size) {
  try {
    uint32_t used = 0;
    if constexpr (kFound) used = write_frames(torch::jit::currentCallstack(), text, size);
    const auto read_python = globals.read_stack.load(std::memory_order_relaxed);
    return used != 0 || read_python == nullptr ? used : read_python(text, size);
  } catch (...) {
    return 0;
  }
}

namespace {

C10_ALWAYS_INLINE Begin begin_of(const at::RecordFunction& fn) {
  Begin range;
  const char* name = fn.name();
  range.name = {name, cut_at_character(name, std::strlen(name), kMaxNameBytes)};
  range.handle = fn.handle();
  range.sequence_nr = fn.seqNr();
  range.forward_thread_id = fn.forwardThreadId();
  range.prelude.debug_handle = fn.debugHandle();
  range.scope = static_cast<uint32_t>(fn.scope());
  return range;
}

// What was asked for of the inputs, as `words` and in `rare`.
template <typename Range>
void read_inputs(const Range& fn, uint32_t wanted, ShapeWords& words, RarePrelude& rare) {
  if ((wanted & kShapesExtra) != 0) words.add_inputs(fn.inputs());
  if ((wanted & kFlopsExtra) == 0) return;
  try {
    rare.flops = count_flops(fn.name(), fn.inputs());
  } catch (...) {  // inputs may throw, as those of a tensor subclass do
  }
}

// `asked`: bits of Extra. The inputs are there if the range's callbacks need them.
template <bool kInputs>
void begin_with_extras(const at::RecordFunction& fn, ThreadBuffer& buffer, bool selected,
                       uint32_t asked) {
  const uint32_t wanted = selected && catch_up(*shared, buffer, kMayLook) ? asked : 0;
  ShapeWords words;
  char stack[kMaxStackBytes];
  RarePrelude rare;
  if (kInputs) read_inputs(fn, wanted, words, rare);
  const bool backward =
      fn.scope() ==
      at::RecordScope::BACKWARD_FUNCTION;  // its stack is autograd's and not the program's
  if ((wanted & kStackExtra) != 0 && !backward)
    rare.texts[kCallStack] = {stack, operator_stack(*shared, stack, sizeof stack)};
  rare.shapes = words.data();
  rare.shape_words = words.size();
  Begin range = begin_of(fn);
  range.prelude.rare = &rare;
  begin_range<true>(*shared, buffer, range, selected);
}

}  // namespace
}  // namespace recfn
