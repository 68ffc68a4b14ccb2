// Appends fields in Protocol Buffers' wire format to memory that is known to suffice.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace recfn {

// So many bytes more than what is written must be there: short texts are copied in blocks.
constexpr size_t kWireSlack = 64;
constexpr size_t kMostVarintBytes = 10;

constexpr size_t varint_size(uint64_t value) {
  return static_cast<size_t>((63 - __builtin_clzll(value | 1)) / 7 + 1);
}

class WireWriter {
 public:
  explicit WireWriter(char* begin) : at_(begin) {}

  void byte(uint8_t value) { *at_++ = static_cast<char>(value); }
  void varint(uint64_t value) {
    while (value >= 0x80) {
      byte(static_cast<uint8_t>(value) | 0x80);
      value >>= 7;
    }
    byte(static_cast<uint8_t>(value));
  }
  // How a field begins; see field_tags.hpp.
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
    std::memcpy(at_, text, N - 1);
    at_ += N - 1;
  }
  // kWireSlack bytes can be read from the text's beginning.
  void padded(std::string_view text) {
    std::memcpy(at_, text.data(), kWireSlack);
    if (text.size() > kWireSlack) std::memcpy(at_ + kWireSlack, text.data() + kWireSlack, text.size() - kWireSlack);
    at_ += text.size();
  }

  // Room for the length of what follows; two bytes are right for nearly every span.
  char* begin_length() {
    char* begin = at_;
    at_ += kUsualLength;
    return begin;
  }
  void end_length(char* begin) {
    const size_t size = static_cast<size_t>(at_ - begin) - kUsualLength, needed = varint_size(size);
    if (needed != kUsualLength) std::memmove(begin + needed, begin + kUsualLength, size);
    at_ = begin;
    varint(size);
    at_ += size;
  }

  // Where the caller writes so many bytes.
  char* reserve(size_t size) {
    at_ += size;
    return at_ - size;
  }
  char* at() const { return at_; }

 private:
  static constexpr size_t kUsualLength = 2;

  void store(uint64_t value, bool big) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    big = !big;
#endif
    if (big) value = __builtin_bswap64(value);
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }

  char* at_;
};

}  // namespace recfn
