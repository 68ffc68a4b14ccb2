// Interned strings of the store. Indexes stay valid within an epoch; a pool that grew too large starts a new epoch with only
// what is still referred to, so that a program which makes a new name each step does not grow without end.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/shapes.hpp"

namespace recfn {

class NamePool {
 public:
  using InputTexts = std::tuple<uint32_t, uint32_t, uint32_t>;  // of shapes, dtypes and concrete inputs

  NamePool() { intern(""); }  // index 0 means "not recorded"

  uint32_t intern(std::string_view text) {
    if (const auto found = index_.find(text); found != index_.end()) return found->second;
    const auto& kept = texts_.emplace_back(text);
    const auto index = static_cast<uint32_t>(texts_.size() - 1);
    index_.emplace(kept, index);
    bytes_ += kept.size();
    return index;
  }

  // Inputs are few and come often: their texts are made once.
  InputTexts intern_shapes(const std::vector<uint64_t>& words) {
    const std::string_view bytes(reinterpret_cast<const char*>(words.data()), words.size() * 8);
    if (const auto found = shapes_.find(std::string(bytes)); found != shapes_.end()) return found->second;
    const ShapeText text = shape_text(words.data(), static_cast<uint32_t>(words.size()));
    bytes_ += bytes.size();
    const InputTexts texts{intern(text.shapes), intern(text.dtypes), intern(text.concrete)};
    return shapes_.emplace(bytes, texts).first->second;
  }

  bool too_large() const { return texts_.size() > max_texts_ || bytes_ > max_bytes_; }

  // Only the texts that are marked in `kept` (one mark per text) are carried over; returns old index -> new index.
  std::vector<uint32_t> start_epoch(const std::vector<bool>& kept) {
    NamePool next;
    std::vector<uint32_t> moved(kept.size());
    for (size_t index = 0; index < kept.size(); ++index) {
      if (kept[index]) moved[index] = next.intern(texts_[index]);
    }
    texts_.swap(next.texts_), index_.swap(next.index_), shapes_.swap(next.shapes_);
    bytes_ = next.bytes_;
    max_texts_ = std::max<size_t>(kMaxTexts, 2 * texts_.size());
    max_bytes_ = std::max<size_t>(kMaxBytes, 2 * bytes_);
    ++epoch_;
    return moved;
  }

  uint64_t epoch() const { return epoch_; }
  size_t size() const { return texts_.size(); }
  const std::string& text(size_t index) const { return texts_[index]; }

 private:
  static constexpr size_t kMaxTexts = 65'536;
  static constexpr size_t kMaxBytes = 8u << 20;

  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, uint32_t> index_;
  std::unordered_map<std::string, InputTexts> shapes_;
  size_t bytes_ = 0, max_texts_ = kMaxTexts, max_bytes_ = kMaxBytes;
  uint64_t epoch_ = 0;
};

}  // namespace recfn
