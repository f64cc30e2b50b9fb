#pragma once
// Gets one payload, chunk by chunk, from the first of several machines that gives it; goes on with the next from the
// chunk that it has. One thread.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "broadcast_frames.hpp"
#include "fetch_window.hpp"
#include "weir/transport/transport.hpp"

namespace weir::broadcast {

struct fetch_settings {
  std::uint64_t window_bytes = std::uint64_t{16} << 20;  ///< asked for at a time, at most; or two chunks
  std::chrono::milliseconds chunk_deadline{10'000};
  std::chrono::milliseconds silence{3'000};  ///< without a word, a parent counts as hung
};

class payload_fetch {
 public:
  struct hooks {
    /// A connection to a parent by its number, of `parents`; made if there is none.
    std::function<result<std::shared_ptr<connection>>(std::size_t parent)> connect;
    /// The next chunk is whole and checked, in order. Not called for what a local parent gives.
    std::function<void(std::uint64_t index, std::uint64_t checksum)> advanced;
    /// Something went wrong that was got over, or not.
    std::function<void(const std::string&)> notice;
    /// The end of it, called from `work`: the payload is there, or no parent gives it.
    std::function<void(result<void>)> done;
  };

  /// `into` has size.bytes; it stays in place until `done` was called. `first_is_local`: the first parent's memory is
  /// this machine's.
  payload_fetch(const payload_size& size, std::span<std::byte> into, std::size_t parents, bool first_is_local,
                fetch_settings settings, hooks h);

  void offered(const connection& by, const offer& what);
  void refused(const connection& by, const refuse& what);
  void told(const connection& by, const ready& news);
  void lost(const connection& gone, const std::string& why);

  /// Asks for what may be asked for; switches parents; ends. Returns what it did.
  std::size_t work();
  const payload_id& id() const noexcept { return size_.id; }
  std::uint64_t wire_bytes() const noexcept { return got_bytes_; }
  /// What the parent's bytes come by.
  std::string lane() const { return parent_ ? parent_->lane() : std::string(); }
  /// It is copied from this machine's memory, unchecked.
  bool local() const noexcept { return local_ && parent_number_ == 0; }

 private:
  enum class chunk_state : std::uint8_t { missing, asked, whole };
  bool from_parent(const connection& by) const { return parent_ && parent_.get() == &by && !leaving_; }
  fetch_window whole_window() const {
    return fetch_window(settings_.window_bytes / std::max<std::uint64_t>(1, size_.chunk));
  }
  void next_parent(const std::string& why);
  void ask(std::uint64_t index);
  void got(std::uint64_t index, std::chrono::steady_clock::time_point asked, const result<void>& outcome);

  payload_size size_;
  std::span<std::byte> into_;
  std::size_t parents_;
  bool local_;
  fetch_settings settings_;
  hooks hooks_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  ///< completions outlive the fetch only in name

  std::size_t parent_number_ = 0;
  std::shared_ptr<connection> parent_;
  std::string region_;
  bool leaving_ = false;  ///< the parent is given up; its answers are still waited for
  bool ended_ = false;
  std::string last_failure_;
  std::chrono::steady_clock::time_point heard_{};
  fetch_window window_;  ///< of this parent
  std::vector<std::uint64_t> checksums_;
  std::vector<chunk_state> chunks_;
  std::uint64_t whole_ = 0;  ///< chunks from the start without a gap
  std::uint64_t next_ = 0;   ///< none below is missing
  std::size_t asked_ = 0;
  std::uint64_t there_ = 0;       ///< chunks that this parent has
  std::uint64_t mismatches_ = 0;  ///< of this parent
  std::uint64_t got_bytes_ = 0;
};

}  // namespace weir::broadcast
