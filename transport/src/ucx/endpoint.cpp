#include "endpoint.hpp"

#include <cstdlib>

namespace weir::ucx {

/// One operation of UCX's, until its callback: what it reads from stays here.
struct endpoint::pending {
  std::shared_ptr<endpoint> on;
  message head;
  std::shared_ptr<const void> keep;
  ended then;
};

result<std::shared_ptr<endpoint>> endpoint::make(std::shared_ptr<worker> at, const std::string& address,
                                                 std::uint64_t id, const transport_id& peer,
                                                 std::function<void()> on_failed) {
  std::shared_ptr<endpoint> made(new endpoint(std::move(at), address, id, peer));
  made->on_failed_ = std::move(on_failed);
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&endpoint::failed, made.get()};
  if (const auto status = ucp_ep_create(made->at->handle(), &params, &made->handle_); status != UCS_OK) {
    made->handle_ = nullptr;
    const char* tls = std::getenv("UCX_TLS");
    return fail(errc::unsupported, std::string("UCX finds no way to the peer: ") + ucs_status_string(status) +
                                       (tls == nullptr ? "" : std::string("; UCX_TLS=") + tls) +
                                       ": both sides need a transport in common that reports a peer's end, such as "
                                       "tcp, rc, or on one machine posix and sysv with UCX_MM_ERROR_HANDLING=y");
  }
  made->path_ = lanes_of(made->handle_);
  return made;
}

endpoint::~endpoint() = default;

void endpoint::failed(void* self, ucp_ep_h, ucs_status_t status) {
  auto& e = *static_cast<endpoint*>(self);
  e.lost = true;
  if (!std::exchange(e.doomed, true)) e.why = ucs_status_string(status);
  e.on_failed_();
}

void endpoint::finished(void* request, ucs_status_t status, pending* p) {
  const std::unique_ptr<pending> mine(p);
  --mine->on->under_way_;
  if (request != nullptr) ucp_request_free(request);
  if (mine->then) mine->then(status);
}

void endpoint::send(const message& m, std::span<const std::byte> payload, std::shared_ptr<const void> keep,
                    unsigned flags, ended then) {
  if (handle_ == nullptr) {
    if (then) then(UCS_ERR_CANCELED);
    return;
  }
  auto p = std::make_unique<pending>(pending{shared_from_this(), m, std::move(keep), std::move(then)});
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.flags = flags;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.user_data = p.get();
  params.cb.send = [](void* request, ucs_status_t status, void* mine) {
    finished(request, status, static_cast<pending*>(mine));
  };
  ++under_way_;
  void* const request = ucp_am_send_nbx(handle_, message_id, &p->head, sizeof p->head,
                                        payload.empty() ? nullptr : payload.data(), payload.size(), &params);
  if (request == nullptr)
    finished(nullptr, UCS_OK, p.release());
  else if (UCS_PTR_IS_ERR(request))
    finished(nullptr, UCS_PTR_STATUS(request), p.release());
  else
    (void)p.release();  // its callback has it
}

void endpoint::receive(void* announced, std::span<std::byte> into, ended then) {
  auto p = std::make_unique<pending>(pending{shared_from_this(), {}, {}, std::move(then)});
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.user_data = p.get();
  params.cb.recv_am = [](void* request, ucs_status_t status, std::size_t, void* mine) {
    finished(request, status, static_cast<pending*>(mine));
  };
  ++under_way_;
  void* const request = ucp_am_recv_data_nbx(at->handle(), announced, into.data(), into.size(), &params);
  if (request == nullptr)
    finished(nullptr, UCS_OK, p.release());
  else if (UCS_PTR_IS_ERR(request))
    finished(nullptr, UCS_PTR_STATUS(request), p.release());
  else
    (void)p.release();
}

void endpoint::close() {
  doomed = true;
  if (handle_ == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  closing_ = ucp_ep_close_nbx(std::exchange(handle_, nullptr), &params);
  if (UCS_PTR_IS_ERR(closing_)) closing_ = nullptr;
}

bool endpoint::quiet() {
  if (closing_ != nullptr && ucp_request_check_status(closing_) != UCS_INPROGRESS)
    ucp_request_free(std::exchange(closing_, nullptr));
  return closing_ == nullptr && under_way_ == 0;
}

}  // namespace weir::ucx
