#pragma once
// What TCP peers say to one another: a header of 48 bytes (little-endian), then `length` bytes of payload.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "shared_memory.hpp"

namespace weir::tcp {

static_assert(std::endian::native == std::endian::little, "headers are little-endian");

inline constexpr std::uint32_t magic = 0x52494557;  ///< "WEIR"
inline constexpr std::string_view descriptor_prefix = "tcp:";
inline constexpr std::uint32_t protocol_version = 2;
inline constexpr std::size_t longest_frame = std::size_t{1} << 20;
inline constexpr std::size_t longest_reason = 1024;
/// Requests that a stream may have under way at its peer: one that has more breaks the protocol.
inline constexpr std::size_t window = 16;

enum class kind : std::uint8_t {
  hello = 1,  ///< connecting side: id is the version, offset the stream's number, key the connection's; then
              ///< `whereabouts` and the token
  welcome,    ///< the answer, then `whereabouts`
  refused,    ///< the answer to hello, get or put (of this id): code is why; then a sentence
  frame,      ///< a control frame, on stream 0 alone
  get,        ///< `length` bytes at `offset` of region `key`, which follow the answer `data`
  data,
  put,  ///< the bytes follow; answered by `stored`
  stored,
  goodbye,  ///< an orderly end, on stream 0
};

using key = region_key;

struct header {
  std::uint32_t word = magic;
  tcp::kind kind{};
  std::uint8_t code = 0;      ///< of errc
  std::uint16_t streams = 0;  ///< of hello: how many, that for frames included
  std::uint64_t id = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  tcp::key key{};
};
static_assert(sizeof(header) == 48 && std::is_trivially_copyable_v<header>);

/// Whether that many bytes follow the header.
inline std::uint64_t payload_of(const header& h) noexcept {
  return h.kind == kind::get || h.kind == kind::stored ? 0 : h.length;
}

}  // namespace weir::tcp
