#include "library.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <utility>

#include "environment.hpp"
#include "wire.hpp"

#if __has_include(<ucs/debug/log_def.h>)
#include <ucs/debug/log_def.h>
#define WEIR_UCX_LOG 1
#endif

namespace weir::ucx {

namespace {

#ifdef WEIR_UCX_LOG
/// UCX writes to standard output, which belongs to the program.
ucs_log_func_rc_t log_to_stderr(const char*, unsigned, const char*, ucs_log_level_t level,
                                const ucs_log_component_config_t*, const char* message, va_list ap) {
  if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_CONTINUE;  // asked for by UCX_LOG_LEVEL
  // What a peer's end looks like to UCX is told to the user by the connection's end.
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) return UCS_LOG_FUNC_RC_STOP;
  char text[512];
  (void)std::vsnprintf(text, sizeof text, message, ap);
  (void)std::fprintf(stderr, "ucx: %s\n", text);
  return UCS_LOG_FUNC_RC_STOP;
}
#endif

void quiet_once() {
#ifdef WEIR_UCX_LOG
  static std::once_flag once;
  std::call_once(once, [] { ucs_log_push_handler(log_to_stderr); });
#endif
}

void apply(ucp_config_t* config, const variable& v) {
  if (v.value != nullptr && environment_value(v) == nullptr) (void)ucp_config_modify(config, v.name, v.value);
}

std::string tls() {
  const char* text = std::getenv("UCX_TLS");
  return text == nullptr ? "UCX_TLS is not set" : std::string("UCX_TLS=") + text;
}

}  // namespace

std::uint32_t library_version() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return major << 16U | minor;
}

std::string written_version(std::uint32_t version) {
  return std::to_string(version >> 16U) + "." + std::to_string(version & 0xFFFFU);
}

result<std::shared_ptr<context>> context::make() {
  quiet_once();
  ucp_config_t* config = nullptr;
  if (const auto status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK)
    return fail(errc::invalid_config,
                std::string("UCX does not take one of the UCX_* variables: ") + ucs_status_string(status));
  for (const auto& v : variables) apply(config, v);
  if (library_version() < (1U << 16U | 16U)) apply(config, protocols_before_1_16);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // memory is made known by any thread
  params.name = "weir";
  ucp_context_h handle = nullptr;
  const auto status = ucp_init(&params, config, &handle);
  ucp_config_release(config);
  if (status != UCS_OK)
    return fail(errc::unsupported, std::string("UCX finds no transport: ") + ucs_status_string(status) + "; " + tls() +
                                       ": unset it, or let it have tcp, or posix, sysv and cma, or rc; `ucx_info -d` "
                                       "lists what this machine has");
  return std::shared_ptr<context>(new context(handle));
}

context::~context() { ucp_cleanup(handle_); }

std::shared_ptr<void> context::know(const std::shared_ptr<context>& c, void* at, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = at;
  params.length = bytes;
  ucp_mem_h known = nullptr;
  if (ucp_mem_map(c->handle(), &params, &known) != UCS_OK) return nullptr;
  return {known, [c](void* handle) { (void)ucp_mem_unmap(c->handle(), static_cast<ucp_mem_h>(handle)); }};
}

result<std::shared_ptr<worker>> worker::make(std::shared_ptr<context> c, on_message handler) {
  std::shared_ptr<worker> made(new worker(std::move(c), std::move(handler)));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  const auto refused = [](ucs_status_t status) {
    return fail(errc::unsupported, std::string("UCX makes no worker: ") + ucs_status_string(status) + "; " + tls());
  };
  if (const auto status = ucp_worker_create(made->context_->handle(), &params, &made->handle_); status != UCS_OK) {
    made->handle_ = nullptr;
    return refused(status);
  }
  if (const auto status = ucp_worker_get_efd(made->handle_, &made->fd_); status != UCS_OK) return refused(status);
  ucp_am_handler_param_t messages{};
  messages.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                        UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  messages.id = message_id;
  messages.flags = UCP_AM_FLAG_WHOLE_MSG;
  messages.cb = [](void* self, const void* header, std::size_t header_length, void* data, std::size_t length,
                   const ucp_am_recv_param_t* param) {
    auto& w = *static_cast<worker*>(self);
    return w.handler_(w, header, header_length, data, length, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
  };
  messages.arg = made.get();
  if (const auto status = ucp_worker_set_am_recv_handler(made->handle_, &messages); status != UCS_OK)
    return refused(status);
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  if (const auto status = ucp_worker_get_address(made->handle_, &address, &length); status != UCS_OK)
    return refused(status);
  made->address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(made->handle_, address);
  return made;
}

worker::~worker() { destroy(); }

void worker::destroy() {
  if (handle_ != nullptr) ucp_worker_destroy(std::exchange(handle_, nullptr));
}

lanes lanes_of(ucp_ep_h endpoint) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  if (stream == nullptr) return {"?", false};
  ucp_ep_print_info(endpoint, stream);
  (void)std::fclose(stream);
  const std::string printed(text, size);
  std::free(text);  // NOLINT(cppcoreguidelines-no-malloc)
  return lanes_in(printed);
}

/// Lines such as "#  lane[2]:  5:cma/memory.0 md[4]  -> md[4]/cma/sysdev[255] rma_bw#0". Those that carry bulk say
/// "rma_bw" or "am_bw"; where none does, all do.
lanes lanes_in(const std::string& printed) {
  std::vector<std::string> bulk, all;
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    const auto lane = line.find("lane[");
    const auto name = lane == std::string::npos ? lane : line.find(':', line.find("]:", lane) + 2);
    if (name == std::string::npos) continue;
    const auto end = line.find_first_of("/ ", name + 1);
    const auto transport = line.substr(name + 1, end == std::string::npos ? end : end - name - 1);
    const auto add = [&](std::vector<std::string>& to) {
      if (!transport.empty() && std::find(to.begin(), to.end(), transport) == to.end()) to.push_back(transport);
    };
    add(all);
    if (line.find("rma_bw", name) != std::string::npos || line.find("am_bw", name) != std::string::npos) add(bulk);
  }
  lanes found;
  for (const auto& transport : bulk.empty() ? all : bulk) {
    found.bulk += (found.bulk.empty() ? "" : "/") + transport;
    for (const char* own : {"posix", "sysv", "cma", "xpmem", "knem", "self", "cuda_ipc"})
      found.within_host = found.within_host || transport == own;
  }
  if (found.bulk.empty()) found.bulk = "?";
  return found;
}

}  // namespace weir::ucx
