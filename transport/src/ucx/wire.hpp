#pragma once
// What UCX peers say to one another: on a plain TCP socket beside UCX (who is there, and the end), and as UCX's active
// messages (all else). Little-endian.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "shared_memory.hpp"

namespace weir::ucx {

static_assert(std::endian::native == std::endian::little, "headers are little-endian");

inline constexpr std::string_view descriptor_prefix = "ucx:";
inline constexpr std::uint32_t protocol_version = 2;
inline constexpr std::size_t longest_frame = std::size_t{1} << 20;
inline constexpr std::size_t longest_reason = 1024;
inline constexpr std::size_t longest_token = 255;
inline constexpr std::size_t longest_settings = 4096;
/// Of a worker's address; one has some hundred bytes for each network device.
inline constexpr std::size_t longest_address = std::size_t{1} << 16;
/// Bytes of frames that may be on the way to a peer which has not said that its user took them.
inline constexpr std::size_t frames_bound = std::size_t{16} << 20;
/// What a frame counts for.
inline constexpr std::size_t frame_cost(std::size_t bytes) noexcept { return bytes + 64; }
/// Requests that may be under way at a peer: one that has more breaks the protocol.
inline constexpr std::size_t most_requests = 256;

// ---- the socket beside UCX

/// In the order in which they are said: the connecting side hello and ready, the other welcome and accepted; a goodbye
/// by either at the end. A socket that ends without one belongs to a peer that is gone.
enum class said : std::uint8_t { hello = 1, welcome, ready, accepted, refused, goodbye };

struct side_header {
  static constexpr std::uint32_t expected_magic = 0x58435557;  ///< "WUCX"
  std::uint32_t magic = expected_magic;
  ucx::said said{};
  std::uint8_t code = 0;                     ///< of errc, in refused
  std::uint16_t version = protocol_version;  ///< keeps its place in every version
  std::uint32_t length = 0;                  ///< of what follows
  std::uint32_t library = 0;                 ///< UCX's major and minor version, 16 bits each
};
static_assert(sizeof(side_header) == 16 && std::is_trivially_copyable_v<side_header>);
inline constexpr std::size_t longest_side_message = 8192 + longest_address;

/// The fixed part of hello and welcome; the token (of a hello), the settings and the worker's address follow.
struct greeting {
  whereabouts here;
  std::uint64_t link = 0;      ///< what the other side puts into messages for this connection
  std::uint64_t endpoint = 0;  ///< welcome: of this side's endpoint to that peer, 0 if there is none,
  std::uint64_t pair = 0;      ///< and of the one there that it belongs to
  std::uint32_t shares_memory = 0;
  std::uint32_t token = 0;     ///< bytes of it
  std::uint32_t settings = 0;  ///< bytes of what `shared_environment` says
  std::uint32_t zero = 0;
  std::uint64_t address_sum = 0;  ///< `sum_of` the address: UCX ends the process over one that is none
};
static_assert(sizeof(greeting) == 88 && std::is_trivially_copyable_v<greeting>);

/// FNV-1a: against damage, not against malice.
constexpr std::uint64_t sum_of(std::string_view bytes) noexcept {
  std::uint64_t sum = 14695981039346656037U;
  for (const char c : bytes) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return sum;
}

/// Of ready and accepted: the endpoint that is to be used, and whether it is the one that the welcome was about.
struct agreement {
  std::uint64_t endpoint = 0;
  std::uint64_t reused = 0;
};

/// Of goodbye.
struct farewell {
  std::uint64_t frames = 0;  ///< that were sent: the last may still come
};

// ---- active messages

inline constexpr unsigned message_id = 1;

enum class kind : std::uint8_t {
  get = 1,  ///< `length` bytes at `offset` of region `key`; answered by data or refused, of this id
  data,     ///< the bytes are the message's data
  put,      ///< likewise; answered by stored or refused
  stored,
  refused,  ///< code is why; the data is a sentence
  frame,    ///< a control frame; id is its number, from 0 on
  taken,    ///< the user took frames of `length` bytes
  ping,     ///< answered by pong
  pong,
};

struct message {
  std::uint64_t link = 0;  ///< the receiver's number for the connection
  std::uint64_t id = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  region_key key{};
  ucx::kind kind{};
  std::uint8_t code = 0;
  std::uint16_t zero = 0;
  std::uint32_t version = protocol_version;
};
static_assert(sizeof(message) == 56 && std::is_trivially_copyable_v<message>);

}  // namespace weir::ucx
