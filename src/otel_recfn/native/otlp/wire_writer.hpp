// Appends fields in Protocol Buffers' wire format to memory that is known to suffice.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace recfn {

// So many bytes more than what is written must be there: short texts are copied in blocks.
constexpr size_t kWireSlack = 64;
constexpr size_t kMaxVarintBytes = 10;

constexpr size_t varint_size(uint64_t value) {
  return static_cast<size_t>((63 - __builtin_clzll(value | 1)) / 7 + 1);
}

// How the fields begin that the encoder writes: their numbers as OTLP's trace.proto and
// common.proto give them, with the wire type.
enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

constexpr uint32_t field_tag(uint32_t number, WireType type) {
  return number << 3 | static_cast<uint32_t>(type);
}

namespace tags {
constexpr uint32_t kSpans = field_tag(2, WireType::kLengthDelimited);
constexpr uint32_t kSpanTraceId = field_tag(1, WireType::kLengthDelimited);
constexpr uint32_t kSpanId = field_tag(2, WireType::kLengthDelimited);
constexpr uint32_t kSpanParentId = field_tag(4, WireType::kLengthDelimited);
constexpr uint32_t kSpanName = field_tag(5, WireType::kLengthDelimited);
constexpr uint32_t kSpanKind = field_tag(6, WireType::kVarint);
constexpr uint32_t kSpanStartTime = field_tag(7, WireType::kFixed64);
constexpr uint32_t kSpanEndTime = field_tag(8, WireType::kFixed64);
constexpr uint32_t kSpanAttributes = field_tag(9, WireType::kLengthDelimited);
constexpr uint32_t kSpanEvents = field_tag(11, WireType::kLengthDelimited);
constexpr uint32_t kSpanLinks = field_tag(13, WireType::kLengthDelimited);
constexpr uint32_t kSpanStatus = field_tag(15, WireType::kLengthDelimited);
constexpr uint32_t kSpanFlags = field_tag(16, WireType::kFixed32);
constexpr uint32_t kEventTime = field_tag(1, WireType::kFixed64);
constexpr uint32_t kLinkTraceId = field_tag(1, WireType::kLengthDelimited);
constexpr uint32_t kLinkSpanId = field_tag(2, WireType::kLengthDelimited);
constexpr uint32_t kLinkFlags = field_tag(6, WireType::kFixed32);
constexpr uint32_t kKey = field_tag(1, WireType::kLengthDelimited);
constexpr uint32_t kValue = field_tag(2, WireType::kLengthDelimited);
constexpr uint32_t kBoolValue = field_tag(2, WireType::kVarint);
constexpr uint32_t kIntValue = field_tag(3, WireType::kVarint);
}  // namespace tags

class WireWriter {
 public:
  explicit WireWriter(char* begin) : cursor_(begin) {}

  void byte(uint8_t value) { *cursor_++ = static_cast<char>(value); }
  void varint(uint64_t value) {
    while (value >= 0x80) {
      byte(static_cast<uint8_t>(value) | 0x80);
      value >>= 7;
    }
    byte(static_cast<uint8_t>(value));
  }
  template <uint32_t Tag>
  void tag() {
    static_assert(Tag < 1u << 14, "a tag of more than two bytes");
    if (Tag < 0x80) {
      byte(static_cast<uint8_t>(Tag));
    } else {
      byte(static_cast<uint8_t>(Tag) | 0x80);
      byte(static_cast<uint8_t>(Tag >> 7));
    }
  }
  void fixed64(uint64_t value) { store(value, false); }
  void fixed32(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) byte(static_cast<uint8_t>(value >> shift));
  }
  // As trace and span ids are written.
  void big_endian(uint64_t value) { store(value, true); }

  template <size_t N>
  void literal(const char (&text)[N]) {
    std::memcpy(cursor_, text, N - 1);
    cursor_ += N - 1;
  }
  // kWireSlack bytes can be read from the text's beginning.
  void padded(std::string_view text) {
    std::memcpy(cursor_, text.data(), kWireSlack);
    if (text.size() > kWireSlack) {
      std::memcpy(cursor_ + kWireSlack, text.data() + kWireSlack, text.size() - kWireSlack);
    }
    cursor_ += text.size();
  }

  // Room for the length of what follows; two bytes are right for nearly every span.
  char* begin_length() {
    char* begin = cursor_;
    cursor_ += kUsualLength;
    return begin;
  }
  void end_length(char* begin) {
    const size_t size = static_cast<size_t>(cursor_ - begin) - kUsualLength;
    const size_t needed = varint_size(size);
    if (needed != kUsualLength) std::memmove(begin + needed, begin + kUsualLength, size);
    cursor_ = begin;
    varint(size);
    cursor_ += size;
  }

  // Where the caller writes so many bytes.
  char* reserve(size_t size) {
    cursor_ += size;
    return cursor_ - size;
  }
  char* at() const { return cursor_; }

 private:
  static constexpr size_t kUsualLength = 2;

  void store(uint64_t value, bool big) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    big = !big;
#endif
    if (big) value = __builtin_bswap64(value);
    std::memcpy(cursor_, &value, sizeof value);
    cursor_ += sizeof value;
  }

  char* cursor_;
};

}  // namespace recfn
