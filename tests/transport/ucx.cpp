// The UCX transport: what every transport does, over each of UCX's ways, then peers that are hostile, dead, stopped or
// of another run. The ways are chosen by UCX_TLS, which UCX reads when a transport is made.
#include <cstdlib>

#include "conformance.hpp"
#include "weir/transport/load.hpp"

using namespace weir::testing;
using namespace std::chrono_literals;

namespace {

/// An environment variable while it lives.
struct variable {
  variable(const char* name, const char* value) : name_(name) {
    if (value == nullptr)
      ::unsetenv(name);
    else
      ::setenv(name, value, 1);
  }
  ~variable() { ::unsetenv(name_); }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;

 private:
  const char* name_;
};

weir::transport_maker maker(const weir::transport_settings& settings = {{"shared_memory", "off"}}) {
  auto loaded = weir::load_transport("ucx", settings);
  INFO((loaded ? std::string() : loaded.error().message));
  REQUIRE(loaded);
  return loaded->make;
}

}  // namespace

TEST_CASE("ucx with mapped memory conforms") { conformance({maker({}), "127.0.0.1:0"}); }
TEST_CASE("ucx over tcp conforms") {
  const variable tls("UCX_TLS", "tcp");
  conformance({maker(), "127.0.0.1:0"});
}
TEST_CASE("ucx over memory of the machine conforms") {
  const variable tls("UCX_TLS", "posix,sysv,cma,self");
  conformance({maker(), "127.0.0.1:0"});
}
