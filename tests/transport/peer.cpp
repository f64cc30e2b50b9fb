// A transport in a process of its own, for tests: `peer serve TRANSPORT BYTES [KEY=VALUE...]` listens, has a region of
// so many bytes and prints its address and descriptor; `peer fetch TRANSPORT ADDRESS DESCRIPTOR BYTES UID
// [KEY=VALUE...]` gets it twice, as that user, and prints the outcomes, the lane and how many notices there were;
// `peer outlive TRANSPORT ADDRESS DESCRIPTOR BYTES [KEY=VALUE...]` gets it, says "got", after a line on standard input
// gets it again, prints what came of that, and "closed" once it has lost its connections.
//
// To a server standard input says, a line each: "fd" (prints the open descriptors), "destroy" (the region),
// "undumpable", "frames N" (waits for N frames in all), "accepted N", "hang" (makes no progress any more), "cpu"
// (milliseconds used so far). Each is answered by a line. Its end ends the process. It listens at WEIR_TEST_LISTEN, or
// on loopback.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "process.hpp"
#include "weir/transport/load.hpp"

using namespace weir::testing;

namespace {

[[noreturn]] void die(const std::string& what) {
  std::cerr << "peer: " << what << std::endl;
  std::exit(1);
}

weir::transport_maker maker_of(const std::string& name, const std::vector<std::string>& options) {
  weir::transport_settings settings;
  for (const auto& o : options) settings[o.substr(0, o.find('='))] = o.substr(o.find('=') + 1);
  auto loaded = weir::load_transport(name, settings);
  if (!loaded) die(loaded.error().message);
  return loaded->make;
}

class server {
 public:
  server(const weir::transport_maker& make, std::size_t size) : mine_(make(handlers())) {
    const char* address = std::getenv("WEIR_TEST_LISTEN");
    auto at = mine_->listen(address == nullptr ? "127.0.0.1:0" : address);
    if (!at) die(at.error().message);
    auto made = mine_->allocate(size);
    if (!made) die(made.error().message);
    memory_ = *made;
    for (std::size_t i = 0; i < size; ++i)
      memory_->bytes()[i] = static_cast<std::byte>((i * 2654435761U + 1) >> 7U);  // as pattern(size, 1)
    say(*at + " " + to_hex(memory_->descriptor()));
  }

  void run() {
    std::string text;
    for (;;) {
      while (mine_->progress() > 0) {
      }
      answer_waiting();
      pollfd waiting[]{{mine_->event_fd(), POLLIN, 0}, {0, POLLIN, 0}};
      ::poll(waiting, 2, -1);
      if (waiting[1].revents == 0) continue;
      char c = 0;
      if (::read(0, &c, 1) != 1) return;
      if (c != '\n') {
        text += c;
        continue;
      }
      obey(std::exchange(text, {}));
    }
  }

 private:
  static void say(const std::string& text) { std::cout << text << std::endl; }
  weir::transport_handlers handlers() {
    return {[this](std::shared_ptr<weir::connection> c) {
              accepted_.push_back(std::move(c));
              ++accepted_ever_;
            },
            [this](weir::connection& from, std::span<const std::byte> frame) {
              ++frames_;
              (void)from.send(frame);
            },
            [this](weir::connection& c, const weir::error&) {
              std::erase_if(accepted_, [&](const auto& mine) { return mine.get() == &c; });
            }};
  }
  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "fd") return say(std::to_string(open_descriptors()));
    if (what == "cpu") {
      rusage used{};
      ::getrusage(RUSAGE_SELF, &used);
      return say(std::to_string((used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
                                (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000));
    }
    if (what == "destroy") {
      memory_.reset();
      return say("destroyed");
    }
    if (what == "undumpable") {
      ::prctl(PR_SET_DUMPABLE, 0);
      return say("done");
    }
    if (what == "hang") {
      say("hanging");
      for (char c = 0; ::read(0, &c, 1) == 1;) {
      }
      std::_Exit(0);
    }
    waiting_for_ = what;
    words >> wanted_;
  }
  void answer_waiting() {
    if (waiting_for_.empty() || (waiting_for_ == "frames" ? frames_ : accepted_ever_) < wanted_) return;
    waiting_for_.clear();
    say("reached");
  }

  std::vector<std::shared_ptr<weir::connection>> accepted_;
  std::size_t frames_ = 0, accepted_ever_ = 0, wanted_ = 0;
  std::string waiting_for_;
  std::shared_ptr<weir::region> memory_;
  std::unique_ptr<weir::transport> mine_;
};

int fetch(const weir::transport_maker& make, const std::vector<std::string>& words) {
  const auto user = static_cast<uid_t>(std::stoul(words[3]));
  if (user != ::getuid() && (::setgid(user) != 0 || ::setuid(user) != 0)) die("cannot become that user");
  std::size_t notices = 0;
  auto mine = make({{}, {}, {}, [&](const std::string& what) { ++notices, std::cerr << what << std::endl; }});
  auto to = mine->connect(words[0], pair_of_transports::soon());
  if (!to) die(to.error().message);
  std::string said;
  for (int i = 0; i < 2; ++i) {
    std::vector<std::byte> into(std::stoull(words[2]));
    std::optional<weir::result<void>> outcome;
    (*to)->get(from_hex(words[1]), 0, into, pair_of_transports::soon(),
               [&](weir::result<void> r) { outcome = std::move(r); });
    while (!outcome) {
      pollfd waiting{mine->event_fd(), POLLIN, 0};
      if (mine->progress() == 0) ::poll(&waiting, 1, -1);
    }
    said += !*outcome ? "failed " : into == pattern(into.size(), 1) ? "whole " : "torn ";
  }
  auto lane = (*to)->lane();
  std::replace(lane.begin(), lane.end(), ' ', '_');
  std::cout << said << lane << ' ' << notices << std::endl;
  return 0;
}

/// Two transports that are connected: over one something is under way when the peer falls silent, over one nothing.
int outlive(const weir::transport_maker& make, const std::vector<std::string>& words) {
  int closed = 0;
  const auto closing = [&](weir::connection&, const weir::error&) { ++closed; };
  std::vector<std::unique_ptr<weir::transport>> mine;
  std::vector<std::shared_ptr<weir::connection>> to;
  for (int i = 0; i < 2; ++i) {
    mine.push_back(make({{}, {}, closing, {}}));
    auto connected = mine.back()->connect(words[0], pair_of_transports::soon());
    if (!connected) die(connected.error().message);
    to.push_back(*connected);
  }
  const auto get = [&] {
    std::vector<std::byte> into(std::stoull(words[2]));
    std::optional<weir::result<void>> outcome;
    to[0]->get(from_hex(words[1]), 0, into, std::chrono::steady_clock::now() + std::chrono::minutes(1),
               [&](weir::result<void> r) { outcome = std::move(r); });
    while (!outcome) {
      pollfd waiting{mine[0]->event_fd(), POLLIN, 0};
      if (mine[0]->progress() == 0) ::poll(&waiting, 1, -1);
    }
    return *outcome;
  };
  if (auto got = get(); !got) die(got.error().message);
  std::cout << "got" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  const auto second = get();
  std::cout << (second                                           ? "got"
                : second.error().code == weir::errc::unavailable ? "unavailable"
                                                                 : "another")
            << std::endl;
  while (closed < 2) {
    pollfd waiting[]{{mine[0]->event_fd(), POLLIN, 0}, {mine[1]->event_fd(), POLLIN, 0}};
    if (mine[0]->progress() + mine[1]->progress() == 0) ::poll(waiting, 2, -1);
  }
  std::cout << "closed" << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string what = words.empty() ? "" : words[0];
  const std::size_t own = what == "fetch" ? 6 : what == "outlive" ? 5 : 3;
  if (words.size() < own)
    die("usage: serve TRANSPORT BYTES | fetch TRANSPORT ADDRESS DESCRIPTOR BYTES UID | outlive TRANSPORT ADDRESS "
        "DESCRIPTOR BYTES");
  const auto make = maker_of(words[1], {words.begin() + static_cast<std::ptrdiff_t>(own), words.end()});
  if (what == "fetch") return fetch(make, {words.begin() + 2, words.end()});
  if (what == "outlive") return outlive(make, {words.begin() + 2, words.end()});
  server s(make, std::stoull(words[2]));
  s.run();
}
