#pragma once
// Errors as values. This header stands in the lowest folder because every other one includes it.
//
// `result<T>` has the interface of std::expected<T, error> (C++23), so that it can become that type. What can fail in
// use returns a result; exceptions are for broken invariants.

#include <cassert>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace weir {

/// What kind of failure: what a caller can decide on. The message says the rest.
enum class errc : unsigned char {
  invalid_argument = 1,  ///< the caller passed something out of range or of the wrong shape
  invalid_config,        ///< a config field is unknown, of the wrong type, or out of range
  invalid_data,          ///< a file or frame is malformed, truncated, or of an unknown version
  not_found,             ///< a file, name, or peer does not exist
  io,                    ///< the operating system refused: the message carries its reason
  unavailable,           ///< the other side is gone, stopping, or has no room
  timeout,               ///< no answer by the deadline
  numeric,               ///< NaN or infinity where a finite number is needed
  unsupported,           ///< valid, but this build or device cannot do it
  internal,              ///< a fault of Weir's own
};

/// The name of an error kind, such as "invalid_config".
inline const char* to_string(errc code) noexcept {
  switch (code) {
    case errc::invalid_argument:
      return "invalid_argument";
    case errc::invalid_config:
      return "invalid_config";
    case errc::invalid_data:
      return "invalid_data";
    case errc::not_found:
      return "not_found";
    case errc::io:
      return "io";
    case errc::unavailable:
      return "unavailable";
    case errc::timeout:
      return "timeout";
    case errc::numeric:
      return "numeric";
    case errc::unsupported:
      return "unsupported";
    case errc::internal:
      return "internal";
  }
  return "unknown";
}

/// A failure: its kind, and one sentence that names what failed, where (file, field, peer), and what to do.
struct error {
  errc code = errc::internal;
  std::string message;
};

/// Wraps an error on its way into a result: `return fail(errc::io, path + ": " + reason);`
struct unexpected {
  error value;
};

inline unexpected fail(errc code, std::string message) { return unexpected{error{code, std::move(message)}}; }
inline unexpected fail(error e) { return unexpected{std::move(e)}; }

/// The first line of an exception's text: libtorch's goes on with a stack of calls.
inline std::string first_line(const char* what) {
  const std::string text(what);
  return text.substr(0, text.find('\n'));
}

/// A value, or the error that took its place. Accessing the side that is not there is a broken invariant.
template <class T>
class [[nodiscard]] result {
 public:
  using value_type = T;

  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT(google-explicit-constructor)
  result(unexpected e) : state_(std::in_place_index<1>, std::move(e.value)) {}  // NOLINT(google-explicit-constructor)
  template <class U>
  requires(std::is_convertible_v<U&&, T> && !std::is_same_v<std::remove_cvref_t<U>, result> &&
           !std::is_same_v<std::remove_cvref_t<U>, unexpected> && !std::is_same_v<std::remove_cvref_t<U>, T>)
      result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& operator*() & noexcept { return value(); }
  const T& operator*() const& noexcept { return value(); }
  T&& operator*() && noexcept { return std::move(value()); }
  T* operator->() noexcept { return &value(); }
  const T* operator->() const noexcept { return &value(); }

  T& value() & noexcept {
    assert(has_value());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& noexcept {
    assert(has_value());
    return *std::get_if<0>(&state_);
  }
  T&& value() && noexcept { return std::move(value()); }

  const weir::error& error() const& noexcept {
    assert(!has_value());
    return *std::get_if<1>(&state_);
  }
  weir::error&& error() && noexcept {
    assert(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, weir::error> state_;
};

template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;

  result() = default;
  result(unexpected e) : error_(std::move(e.value)), failed_(true) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const noexcept { return !failed_; }
  explicit operator bool() const noexcept { return has_value(); }
  const weir::error& error() const& noexcept {
    assert(failed_);
    return error_;
  }
  weir::error&& error() && noexcept {
    assert(failed_);
    return std::move(error_);
  }

 private:
  weir::error error_;
  bool failed_ = false;
};

}  // namespace weir
