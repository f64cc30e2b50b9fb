#include "payload_server.hpp"

#include <xxhash.h>

#include <algorithm>

namespace weir::broadcast {

namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto sign_of_life = 500ms;
constexpr auto slice = 2ms;                   ///< of checksumming, between two looks at the transport
constexpr std::size_t most_waiting = 64;      ///< subscriptions to what is not here yet, of all peers
constexpr std::uint64_t most_at_once = 4096;  ///< checksums in a frame

/// A peer that cannot be told is one that is lost: `closed` will say so.
template <class Frame>
void send(connection& to, Frame f) {
  static_cast<void>(to.send(write(std::move(f))));
}

}  // namespace

std::uint64_t chunk_checksum(std::span<const std::byte> chunk) { return XXH3_64bits(chunk.data(), chunk.size()); }

void payload_server::add(const payload_size& size, std::shared_ptr<region> memory) {
  auto& p = payloads_[size.id];
  p.size = size;
  p.memory = std::move(memory);
  auto parked = std::move(waiting_);
  waiting_.clear();
  for (auto& w : parked) {
    auto peer = w.peer.lock();
    if (!peer) continue;
    if (w.what.id == size.id)
      accept(p, peer, w.what);
    else
      waiting_.push_back(std::move(w));
  }
}

void payload_server::advance(const payload_id& id, std::uint64_t checksum) {
  auto& p = payloads_.at(id);
  p.checksums.push_back(checksum);
  p.complete = p.checksums.size() == chunks_of(p.size);
  tell(p);
}

void payload_server::complete(const payload_id& id) {
  auto& p = payloads_.at(id);
  p.complete = true;
  tell(p);
}

void payload_server::remove(const payload_id& id, const std::string& why) {
  auto found = payloads_.find(id);
  if (found == payloads_.end()) return;
  for (auto& [key, reader] : found->second.readers)
    if (auto peer = reader.peer.lock()) send(*peer, refuse{id, why});
  payloads_.erase(found);
}

bool payload_server::used(const payload_id& id) const {
  auto found = payloads_.find(id);
  return found != payloads_.end() && !found->second.readers.empty();
}

void payload_server::expect(weight_version version) {
  first_to_come_ = std::max(first_to_come_, version + 1);
  std::erase_if(waiting_, [&](const waiting& w) {
    if (w.what.id.version >= first_to_come_) return false;
    if (auto peer = w.peer.lock()) send(*peer, refuse{w.what.id, "it was passed over here"});
    return true;
  });
}

void payload_server::subscribed(const std::shared_ptr<connection>& by, const subscribe& what) {
  if (auto found = payloads_.find(what.id); found != payloads_.end()) return accept(found->second, by, what);
  if (what.id.version < first_to_come_ || waiting_.size() >= most_waiting)
    return send(*by, refuse{what.id, "it is not here"});
  waiting_.push_back({by, what, clock::now()});
}

void payload_server::accept(payload& p, const std::shared_ptr<connection>& by, const subscribe& what) {
  if (what.from > chunks_of(p.size)) return send(*by, refuse{what.id, "it has fewer chunks"});
  auto& reader = p.readers[by.get()];
  reader = {by, what.from, what.access, clock::now()};
  send(*by, offer{p.size, p.memory->descriptor()});
  tell(p, reader);
}

std::string payload_server::lend(const std::shared_ptr<connection>& to, const payload_id& id) {
  auto& p = payloads_.at(id);
  p.readers[to.get()] = {to, chunks_of(p.size), access::map, clock::now()};
  return p.memory->descriptor();
}

void payload_server::released(const connection& by, const payload_id& id) {
  if (auto found = payloads_.find(id); found != payloads_.end()) found->second.readers.erase(&by);
}

std::vector<payload_id> payload_server::closed(const connection& gone) {
  std::vector<payload_id> mapped;
  for (auto& [id, p] : payloads_)
    if (auto found = p.readers.find(&gone); found != p.readers.end()) {
      if (found->second.access == access::map) mapped.push_back(id);
      p.readers.erase(found);
    }
  std::erase_if(waiting_, [&](const waiting& w) { return w.peer.expired() || w.peer.lock().get() == &gone; });
  return mapped;
}

void payload_server::tell(payload& p) {
  for (auto& [key, reader] : p.readers) tell(p, reader);
}

/// Who reads this machine's memory is told of the end alone, without checksums.
void payload_server::tell(payload& p, subscriber& s) {
  auto peer = s.peer.lock();
  if (!peer) return;
  const auto all = chunks_of(p.size);
  ready news{p.size.id, s.told, {}};
  if (s.access != access::wire) {
    if (!p.complete || s.told == all) return;
    news.first = s.told = all;
  } else {
    if (s.told >= p.checksums.size()) return;
    const auto until = std::min<std::uint64_t>(p.checksums.size(), s.told + most_at_once);
    news.checksums.assign(p.checksums.begin() + static_cast<std::ptrdiff_t>(s.told),
                          p.checksums.begin() + static_cast<std::ptrdiff_t>(until));
    s.told = until;
  }
  s.last = clock::now();
  send(*peer, std::move(news));
  if (s.access == access::wire && s.told < p.checksums.size()) tell(p, s);
}

bool payload_server::waits(const payload& p) {
  return p.wants_checksums() && std::any_of(p.readers.begin(), p.readers.end(),
                                            [&](const auto& r) { return r.second.access == access::wire; });
}

std::size_t payload_server::work() {
  const auto begin = clock::now();
  std::size_t done = 0;
  for (auto& [id, p] : payloads_)
    while (waits(p) && clock::now() - begin < slice) {
      p.checksums.push_back(chunk_checksum(chunk_of(std::as_const(*p.memory).bytes(), p.size, p.checksums.size())));
      tell(p);
      ++done;
    }
  for (auto& [id, p] : payloads_)
    for (auto& [key, reader] : p.readers)
      if (begin - reader.last > sign_of_life && reader.told < chunks_of(p.size))
        if (auto peer = reader.peer.lock()) {
          reader.last = begin;
          send(*peer, ready{id, reader.told, {}});
        }
  for (auto& w : waiting_)
    if (begin - w.last > sign_of_life)
      if (auto peer = w.peer.lock()) {
        w.last = begin;
        send(*peer, ready{w.what.id, w.what.from, {}});
      }
  return done;
}

bool payload_server::busy() const {
  return std::any_of(payloads_.begin(), payloads_.end(), [](const auto& p) { return waits(p.second); });
}

}  // namespace weir::broadcast
