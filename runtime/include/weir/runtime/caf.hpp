#pragma once
// Everything in Weir that depends on the CAF version (written for 0.17.6, as Debian 12 and 13 ship it): how interfaces
// are spelled, how a message type is inspected, how errors travel. Moving to a later CAF is this file's work.

#include <caf/all.hpp>
#include <exception>
#include <string>
#include <utility>

#include "weir/transport/result.hpp"

namespace weir {

namespace detail {

template <class Signature>
struct handler_signature;
template <class... Args>
struct handler_signature<void(Args...)> {
  using type = caf::reacts_to<Args...>;
};
template <class Result, class... Args>
struct handler_signature<Result(Args...)> {
  using type = typename caf::replies_to<Args...>::template with<Result>;
};

template <class Needed, class Offered>
struct offers_all : caf::detail::tl_subset_of<typename Needed::signatures, typename Offered::signatures> {};

}  // namespace detail

/// One message of an interface: `on<reply(request)>`, or `on<void(notice)>` for one that nobody answers.
template <class Signature>
using on = typename detail::handler_signature<Signature>::type;

/// An actor's interface, such as `interface<on<void(a)>, on<c(b)>>`: the type of its handle.
template <class... Signatures>
using interface = caf::typed_actor<Signatures...>;

/// True if an actor of interface `Offered` answers everything that `Needed` asks for.
template <class Offered, class Needed>
concept answers = detail::offers_all<Needed, Offered>::value;

/// What a handler returns that answers later. A copy that an actor keeps holds the actor itself: let go of it in
/// `on_exit`, or the actor, and a thread of its own, stay for ever. CAF tells nobody of a promise that was let go
/// without an answer: deliver an error.
template <class T>
using promise = caf::typed_response_promise<T>;

/// Lists a message's fields: `inspect(f, x)` of each message type is `return inspect_fields(f, "name", x.a, x.b)`.
template <class Inspector, class... Fields>
auto inspect_fields(Inspector& f, const char* name, Fields&... fields) {
  return f(caf::meta::type_name(name), fields...);
}

/// The error as it travels between actors.
inline caf::error to_caf(const error& e) {
  return caf::error(static_cast<std::uint8_t>(e.code), caf::atom("weir"), caf::make_message(e.message));
}

/// The error that came from another actor: ours as it was sent; CAF's own (a receiver that is down, a timeout) by text.
inline error from_caf(const caf::error& e) {
  if (e.category() == caf::atom("weir")) {
    auto text = e.context().match_elements<std::string>() ? e.context().get_as<std::string>(0) : std::string{};
    return {static_cast<errc>(e.code()), std::move(text)};
  }
  if (e == caf::sec::request_receiver_down || e == caf::exit_reason::user_shutdown || e == caf::exit_reason::kill)
    return {errc::unavailable, "the actor asked is gone"};
  if (e == caf::sec::request_timeout) return {errc::timeout, "the actor asked did not answer in time"};
  return {errc::internal, "CAF error " + caf::to_string(e)};
}

/// The reason of an exception that left a handler, as the error its actor ends with.
inline caf::error to_caf(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    return to_caf(error{errc::internal, first_line(e.what())});
  } catch (...) {
    return to_caf(error{errc::internal, "an exception that is no std::exception"});
  }
}

}  // namespace weir
