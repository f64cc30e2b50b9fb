#pragma once
// Calls into code that the user wrote.

#include <exception>
#include <string>

#include "weir/transport/result.hpp"

namespace weir {

/// What `call` returns, a result; if it throws, an error that says what the environment's `what` threw.
template <class Call>
auto guarded(const char* what, Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& e) {
    return fail(errc::internal, std::string("the environment's ") + what + " threw: " + first_line(e.what()));
  } catch (...) {
    return fail(errc::internal, std::string("the environment's ") + what + " threw what is no std::exception");
  }
}

}  // namespace weir
