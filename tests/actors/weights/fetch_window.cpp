// The window of chunks under way, against a link that is simulated: a rate, a latency, and a queue before it.
#include "fetch_window.hpp"

#include <algorithm>
#include <deque>

#include "catch.hpp"

using weir::broadcast::fetch_window;

namespace {

/// Asks for as many chunks at once as the window allows, `chunks` in all. A chunk takes `service` seconds on the link,
/// one at a time, and `latency` besides. Returns how many were asked for and not there, on average of the second half.
double simulate(fetch_window& window, double service, double latency, int chunks) {
  std::deque<double> asked, arrives;
  double now = 0, free_at = 0, sum = 0;
  for (int done = 0; done < chunks; ++done) {
    while (asked.size() < static_cast<std::size_t>(window.chunks())) {
      asked.push_back(now);
      free_at = std::max(free_at, now + latency) + service;
      arrives.push_back(free_at);
    }
    if (done >= chunks / 2) sum += static_cast<double>(asked.size());
    now = arrives.front();
    window.answered(now - asked.front());
    asked.pop_front();
    arrives.pop_front();
  }
  return sum / (chunks - chunks / 2);
}

}  // namespace

TEST_CASE("the window covers what a link holds, and lets little queue before it") {
  // Latency worth 20 chunks: as many are under way, and 1 to 2 more wait (Vegas).
  fetch_window far(1000);
  const auto held = simulate(far, 0.001, 0.020, 4000);
  CHECK(held > 20);
  CHECK(held < 25);
  // No latency: what is asked for beyond the one that is served only waits.
  fetch_window near(1000);
  CHECK(simulate(near, 0.001, 1e-6, 4000) < 5);
}

TEST_CASE("the window is bounded, and never less than two chunks") {
  fetch_window small(4);
  CHECK(simulate(small, 0.001, 1, 200) == 4);
  fetch_window least(1000);
  for (int i = 0; i < 1000; ++i) least.answered(i == 0 ? 0.001 : 1.0);
  CHECK(least.chunks() == 2);
}

TEST_CASE("the window opens within a few round trips") {
  fetch_window window(1000);
  simulate(window, 1e-5, 0.02, 800);
  CHECK(window.chunks() >= 300);
}
