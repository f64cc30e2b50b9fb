#pragma once
// How two transports come to share a link: a hello on each TCP connection, and its answer.

#include <utility>
// clang-format off
#include <boost/asio/awaitable.hpp>  // Boost 1.74's needs <utility> before it
// clang-format on
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "weir/transport/result.hpp"
#include "wire.hpp"

namespace weir::tcp {

/// "HOST:PORT" or "[IPV6]:PORT" as endpoints, the host being "*" only if one listens there. A name is looked up in a
/// thread of its own, which is left behind if the deadline passes. Errors: invalid_argument (no such form), not_found
/// (no such host), timeout.
result<std::vector<boost::asio::ip::tcp::endpoint>> resolve(const std::string& address, bool to_listen,
                                                            std::chrono::steady_clock::time_point deadline);

/// As an address is written.
std::string written(const boost::asio::ip::tcp::endpoint& e);

/// What this side says of itself.
struct introduction {
  std::string token;
  whereabouts here;
};

/// A peer that answered, on each of its sockets.
struct greeted {
  std::vector<boost::asio::ip::tcp::socket> sockets;
  whereabouts there;
};

/// Connects `streams` sockets, that for frames first, to the first of `peers` that answers.
boost::asio::awaitable<result<greeted>> greet(std::vector<boost::asio::ip::tcp::endpoint> peers, std::size_t streams,
                                              introduction ours, key connection);

/// What a hello says, once it is found to be in order and was answered.
struct greeting {
  key connection{};
  std::size_t stream = 0;
  std::size_t streams = 0;  ///< that for frames included
  whereabouts there;
};

/// Reads a hello and answers it. An error was told to the peer as well, if it could be.
boost::asio::awaitable<result<greeting>> answer(boost::asio::ip::tcp::socket& peer, const introduction& ours);

/// The options of a connection: no delay, and an end to peers that are silent for so long.
void prepare(boost::asio::ip::tcp::socket& socket, std::chrono::milliseconds silence);

}  // namespace weir::tcp
