// A UCX peer without a transport behind it, which says what no Weir says: by active messages of its own.
#include <poll.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#include "conformance.hpp"
#include "raw_socket.hpp"
#include "ucx/environment.hpp"
#include "ucx/wire.hpp"
#include "weir/transport/load.hpp"

using namespace weir::testing;
using namespace std::chrono_literals;
namespace ucx = weir::ucx;

namespace {

template <class T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Introduced to a server as a transport would be; then it says anything.
class stranger {
 public:
  explicit stranger(const std::string& address) : socket_(address) {
    ucp_config_t* config = nullptr;
    REQUIRE(ucp_config_read(nullptr, nullptr, &config) == UCS_OK);
    REQUIRE(ucp_config_modify(config, "MM_ERROR_HANDLING", "y") == UCS_OK);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    REQUIRE(ucp_init(&params, config, &context_) == UCS_OK);
    ucp_config_release(config);
    ucp_worker_params_t w{};
    REQUIRE(ucp_worker_create(context_, &w, &worker_) == UCS_OK);
    ucp_am_handler_param_t h{};
    h.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    h.id = ucx::message_id;
    h.arg = this;
    h.cb = [](void* self, const void* header, std::size_t size, void*, std::size_t, const ucp_am_recv_param_t* how) {
      ucx::message m;
      if (size == sizeof m) {
        std::memcpy(&m, header, sizeof m);
        static_cast<stranger*>(self)->heard_.push_back(m);
      }
      const bool announced = (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
      return announced && !static_cast<stranger*>(self)->takes_what_comes ? UCS_INPROGRESS : UCS_OK;
    };
    REQUIRE(ucp_worker_set_am_recv_handler(worker_, &h) == UCS_OK);
    introduce();
  }
  ~stranger() {
    ucp_request_param_t force{};
    force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    force.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* request = ucp_ep_close_nbx(endpoint_, &force);
    for (int i = 0; i < 100'000 && UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS; ++i)
      ucp_worker_progress(worker_);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  stranger(const stranger&) = delete;
  stranger& operator=(const stranger&) = delete;

  /// A message that is in order: a get of nothing.
  ucx::message message() const {
    ucx::message m;
    m.link = link_;
    m.id = 1;
    m.kind = ucx::kind::get;
    return m;
  }
  void say(const void* header, std::size_t size, const std::string& data = {}, unsigned flags = 0) {
    kept_.push_back({std::string(static_cast<const char*>(header), size), data});
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = flags;
    const auto& [h, d] = kept_.back();
    void* request = ucp_am_send_nbx(endpoint_, ucx::message_id, h.data(), h.size(), d.data(), d.size(), &params);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);  // it goes on
    move_on();
  }
  void say(const ucx::message& m, const std::string& data = {}, unsigned flags = 0) { say(&m, sizeof m, data, flags); }
  /// The next answer, of at most 5 s.
  std::optional<ucx::message> answer() {
    for (const auto end = std::chrono::steady_clock::now() + 5s; std::chrono::steady_clock::now() < end; move_on())
      if (!heard_.empty()) {
        const auto m = heard_.front();
        heard_.pop_front();
        return m;
      }
    return std::nullopt;
  }
  /// Whether the server ends the connection.
  bool ended() {
    for (const auto end = std::chrono::steady_clock::now() + 5s; std::chrono::steady_clock::now() < end; move_on()) {
      char c = 0;
      const auto got = ::recv(socket_.fd(), &c, 1, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    }
    return false;
  }
  void move_on() {
    for (int i = 0; i < 50; ++i) ucp_worker_progress(worker_);
  }
  const raw_socket& socket() const { return socket_; }
  bool takes_what_comes = true;

 private:
  void introduce() {
    ucp_address_t* mine = nullptr;
    std::size_t size = 0;
    REQUIRE(ucp_worker_get_address(worker_, &mine, &size) == UCS_OK);
    unsigned major = 0, minor = 0, release = 0;
    ucp_get_version(&major, &minor, &release);
    ucx::side_header head;
    head.said = ucx::said::hello;
    head.library = major << 16U | minor;
    ucx::greeting g;
    g.link = 4711;
    for (char& c : g.here.transport) c = static_cast<char>(std::rand());
    const auto settings = ucx::shared_environment();
    g.settings = static_cast<std::uint32_t>(settings.size());
    g.address_sum = ucx::sum_of({reinterpret_cast<const char*>(mine), size});
    const auto body = bytes_of(g) + settings + std::string(reinterpret_cast<const char*>(mine), size);
    ucp_worker_release_address(worker_, mine);
    head.length = static_cast<std::uint32_t>(body.size());
    socket_.write(bytes_of(head) + body);
    const auto welcome = socket_.read<ucx::side_header>();
    REQUIRE(welcome);
    REQUIRE(welcome->first.said == ucx::said::welcome);
    ucx::greeting theirs;
    std::memcpy(static_cast<void*>(&theirs), welcome->second.data(), sizeof theirs);
    link_ = theirs.link;
    const auto address = welcome->second.substr(sizeof theirs + theirs.settings);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    REQUIRE(ucp_ep_create(worker_, &params, &endpoint_) == UCS_OK);
    ucx::side_header ready;
    ready.said = ucx::said::ready;
    ready.length = sizeof(ucx::agreement);
    socket_.write(bytes_of(ready) + bytes_of(ucx::agreement{5, 0}));
    const auto accepted = socket_.read<ucx::side_header>();
    REQUIRE(accepted);
    REQUIRE(accepted->first.said == ucx::said::accepted);
  }

  raw_socket socket_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::uint64_t link_ = 0;
  std::deque<ucx::message> heard_;
  std::deque<std::pair<std::string, std::string>> kept_;
};

/// A server, and all that it heard of ends.
struct listening {
  listening() {
    auto loaded = weir::load_transport("ucx", {{"shared_memory", "off"}});
    REQUIRE(loaded);
    server = loaded->make({[this](std::shared_ptr<weir::connection> c) { accepted.push_back(std::move(c)); },
                           {},
                           [this](weir::connection&, const weir::error& why) { ends.push_back(why); }});
    address = *server->listen("127.0.0.1:0");
    memory = *server->allocate(100);
    std::memcpy(key.data(), memory->descriptor().data() + memory->descriptor().size() - key.size(), key.size());
  }
  bool until_ended(std::size_t count) {
    for (const auto end = std::chrono::steady_clock::now() + 5s;
         ends.size() < count && std::chrono::steady_clock::now() < end;)
      server->progress();
    return ends.size() == count;
  }
  std::vector<std::shared_ptr<weir::connection>> accepted;
  std::vector<weir::error> ends;
  std::unique_ptr<weir::transport> server;
  std::shared_ptr<weir::region> memory;
  weir::region_key key{};
  std::string address;
};

}  // namespace

TEST_CASE("ucx: requests for what is not there are refused, and the connection serves on") {
  listening at;
  stranger s(at.address);
  std::uint64_t id = 0;
  auto answered = [&](const std::function<void(ucx::message&)>& change, const std::string& data = {}) {
    auto m = s.message();
    m.id = ++id;
    m.key = at.key;
    m.length = 10;
    change(m);
    s.say(m, data);
    const auto a = s.answer();
    REQUIRE(a);
    CHECK(a->id == id);
    CHECK(a->link == 4711);
    return a->kind == ucx::kind::refused ? static_cast<int>(a->code) : 0;
  };
  const auto unavailable = static_cast<int>(weir::errc::unavailable),
             range = static_cast<int>(weir::errc::invalid_argument);
  const std::string ten(10, 'x');
  CHECK(answered([](auto&) {}) == 0);
  CHECK(answered([](auto& m) { m.key[7] = static_cast<char>(m.key[7] ^ 1); }) == unavailable);
  CHECK(answered([](auto& m) { m.offset = 91; }) == range);
  CHECK(answered([](auto& m) { m.length = 101; }) == range);
  CHECK(answered([](auto& m) { m.offset = ~std::uint64_t{0}; }) == range);
  CHECK(answered([](auto& m) { m.offset = ~std::uint64_t{0} - 4, m.length = 8; }) == range);
  CHECK(answered([](auto& m) { m.length = ~std::uint64_t{0}; }) == range);
  CHECK(answered([](auto& m) { m.kind = ucx::kind::put; }, ten) == 0);
  CHECK(answered([](auto& m) { m.kind = ucx::kind::put, m.key[0] = static_cast<char>(m.key[0] ^ 1); }, ten) ==
        unavailable);
  CHECK(answered([](auto& m) { m.kind = ucx::kind::put, m.offset = 91; }, ten) == range);
  CHECK(answered([](auto& m) { m.kind = ucx::kind::put, m.offset = ~std::uint64_t{0} - 4; }, ten) == range);
  at.memory.reset();
  CHECK(answered([](auto&) {}) == unavailable);
  // A large put, by rendezvous, to nowhere.
  CHECK(answered([](auto& m) { m.kind = ucx::kind::put, m.length = 1 << 20; }, std::string(1 << 20, 'y')) ==
        unavailable);
  CHECK(at.ends.empty());
}

TEST_CASE("ucx: messages that are none, or of no connection, are dropped") {
  listening at;
  stranger s(at.address);
  s.say("short", 5);
  s.say("", 0);
  const std::string longer(100, 'z');
  s.say(longer.data(), longer.size(), "data");
  for (std::uint64_t other : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    auto m = s.message();
    m.link = other;
    m.kind = ucx::kind::put;
    m.length = 1 << 20;
    s.say(m, std::string(1 << 20, 'y'));
  }
  auto m = s.message();
  m.key = at.key;
  s.say(m);
  const auto a = s.answer();
  REQUIRE(a);
  CHECK(a->kind == ucx::kind::data);
  CHECK(at.ends.empty());
}

TEST_CASE("ucx: a breach of the protocol ends its connection, and no other") {
  listening at;
  struct breach {
    const char* name;
    std::function<void(stranger&, ucx::message)> commit;
  };
  const std::vector<breach> breaches{
      {"an unknown kind", [](auto& s, auto m) { m.kind = static_cast<ucx::kind>(99), s.say(m); }},
      {"no kind", [](auto& s, auto m) { m.kind = static_cast<ucx::kind>(0), s.say(m); }},
      {"another version", [](auto& s, auto m) { m.version = 9, s.say(m); }},
      {"data to no request", [](auto& s, auto m) { m.kind = ucx::kind::data, s.say(m, "12345"); }},
      {"a verdict on no request", [](auto& s, auto m) { m.kind = ucx::kind::stored, s.say(m); }},
      {"a refusal of no request", [](auto& s, auto m) { m.kind = ucx::kind::refused, s.say(m); }},
      {"a put of another length", [](auto& s, auto m) { m.kind = ucx::kind::put, m.length = 6, s.say(m, "12345"); }},
      {"a frame twice",
       [](auto& s, auto m) {
         m.kind = ucx::kind::frame, m.id = 0;
         s.say(m, "a", UCP_AM_SEND_FLAG_EAGER);
         s.say(m, "a", UCP_AM_SEND_FLAG_EAGER);
       }},
      {"a frame that is too long",
       [](auto& s, auto m) {
         m.kind = ucx::kind::frame, m.id = 0;
         s.say(m, std::string((1 << 20) + 1, 'f'), UCP_AM_SEND_FLAG_EAGER);
       }},
      {"a frame by rendezvous",
       [](auto& s, auto m) {
         m.kind = ucx::kind::frame, m.id = 0, s.say(m, std::string(1 << 20, 'f'), UCP_AM_SEND_FLAG_RNDV);
       }},
      {"more frames than may wait",
       [](auto& s, auto m) {
         m.kind = ucx::kind::frame;
         for (m.id = 1; m.id < 20; ++m.id) s.say(m, std::string(1 << 20, 'f'), UCP_AM_SEND_FLAG_EAGER);
       }},
      {"frames taken that were not sent", [](auto& s, auto m) { m.kind = ucx::kind::taken, m.length = 1, s.say(m); }},
      {"a hello on the socket",
       [](auto& s, auto) {
         ucx::side_header head;
         head.said = ucx::said::hello;
         s.socket().write(bytes_of(head));
       }},
      {"no header on the socket", [](auto& s, auto) { s.socket().write(std::string(64, 'x')); }},
      {"a goodbye that is too short",
       [](auto& s, auto) {
         ucx::side_header head;
         head.said = ucx::said::goodbye;
         s.socket().write(bytes_of(head));
       }},
  };
  pair_of_transports others({weir::load_transport("ucx", {{"shared_memory", "off"}})->make, "127.0.0.1:0"});
  for (std::size_t i = 0; i < breaches.size(); ++i) {
    INFO(breaches[i].name);
    stranger s(at.address);
    breaches[i].commit(s, s.message());
    CHECK(s.ended());
    REQUIRE(at.until_ended(i + 1));
    CHECK(at.ends.back().code == weir::errc::invalid_data);
    CHECK(at.ends.back().message.find("127.0.0.1:") == 0);
  }
  // Who asks for more at once than the protocol allows, and takes none of it.
  auto large = *at.server->allocate(8 << 20);
  {
    stranger greedy(at.address);
    greedy.takes_what_comes = false;
    auto m = greedy.message();
    std::memcpy(m.key.data(), large->descriptor().data() + large->descriptor().size() - 16, 16);
    m.length = 8 << 20;
    for (m.id = 1; m.id < 1000; ++m.id) greedy.say(m);
    CHECK(greedy.ended());
    REQUIRE(at.until_ended(breaches.size() + 1));
    CHECK(at.ends.back().code == weir::errc::invalid_data);
  }
  // One that leaves without a goodbye.
  { const stranger s(at.address); }
  REQUIRE(at.until_ended(breaches.size() + 2));
  CHECK(at.ends.back().code == weir::errc::unavailable);
  auto memory = *others.server->allocate(10);
  std::vector<std::byte> buffer(10);
  CHECK(others.get(memory->descriptor(), 0, buffer));
}
