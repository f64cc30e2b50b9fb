// The UCX transport as a plugin.
#include "weir/transport/plugin.hpp"

#include <stdexcept>

#include "service.hpp"

namespace weir::ucx {

namespace {

class ucx_transport final : public transport {
 public:
  ucx_transport(transport_handlers handlers, const settings& s)
      : handlers_(std::make_shared<const transport_handlers>(std::move(handlers))), service_(handlers_, inbox_, s) {}
  ~ucx_transport() override { inbox_->close(); }

  transport_capabilities capabilities() const override {
    const bool maps = service_.shares_memory();
    return {"ucx", true, maps, maps ? service_.here().host() : std::string(), true, false, longest_frame};
  }
  result<std::string> listen(const std::string& address) override { return service_.listen(address); }
  result<std::shared_ptr<connection>> connect(const std::string& address, time_point deadline) override {
    try {
      return service_.connect(address, deadline);
    } catch (const std::exception& e) {  // no threads or memory
      return fail(errc::unavailable, "no connection to " + address + ": " + e.what());
    }
  }
  result<std::shared_ptr<region>> allocate(std::size_t size) override { return service_.allocate(size); }
  std::size_t progress() override { return inbox_->run(); }
  int event_fd() const override { return inbox_->fd(); }

 private:
  std::shared_ptr<inbox> inbox_ = std::make_shared<inbox>();
  std::shared_ptr<const transport_handlers> handlers_;
  service service_;
};

result<transport_maker> maker(const transport_settings& given) {
  settings s;
  settings_reader r("ucx", given);
  r.text("token", s.token, longest_token)
      .bytes("chunk", s.chunk, 4096, std::uint64_t{1} << 30U)
      .number("window", s.window, 1, 128)
      .milliseconds("silence_ms", s.silence, 1000)
      .flag("shared_memory", s.shared_memory);
  if (auto read = r.end(); !read) return fail(read.error());
  // Whether UCX works here is told now.
  auto tried = context::make();
  if (!tried) return fail(tried.error());
  if (auto w = worker::make(*tried, {}); !w) return fail(w.error());
  return [s](transport_handlers handlers) { return std::make_unique<ucx_transport>(std::move(handlers), s); };
}

}  // namespace

}  // namespace weir::ucx

extern "C" __attribute__((visibility("default"))) const weir_transport_plugin* weir_transport_plugin_v1() {
  static const std::string built_with = std::string("UCX ") + ucp_get_version_string();
  static const auto mine = weir::describe_plugin("ucx", built_with.c_str(), &weir::ucx::maker);
  return &mine;
}
