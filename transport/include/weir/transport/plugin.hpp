#pragma once
// What a transport in a shared object has to offer: the one function below, by which `load_transport` finds it.
//
//   extern "C" const weir_transport_plugin* weir_transport_plugin_v1() {
//     static const weir_transport_plugin mine = weir::describe_plugin("mine", "libmine 1.0", [](const auto& settings)
//     {...}); return &mine;
//   }
//
// C++ types cross this border, so a plugin has to be built as Weir was. The first fields are plain, stay in their
// places in every version, and are checked before anything else of the plugin is used.

#include <cstdint>
#include <string>

#include "weir/transport/settings.hpp"
#include "weir/transport/transport.hpp"

namespace weir {

/// Whose headers these are.
inline constexpr const char* transport_weir_version = "0.1.0";

/// Of what this header and transport.hpp describe. A change of theirs that a compiler can't see (another order of
/// virtual functions, another meaning) makes it another number.
inline constexpr std::uint32_t transport_abi = 1;

/// How the code that includes this is built, as far as it matters to those that link it at run time.
inline const char* transport_build() {
  static const std::string text = [] {
    std::string t;
#if defined(__clang__)
    t += "clang " + std::to_string(__clang_major__);
#elif defined(__GNUC__)
    t += "gcc " + std::to_string(__GNUC__);
#endif
#ifdef __GXX_ABI_VERSION
    t += ", C++ ABI " + std::to_string(__GXX_ABI_VERSION);
#endif
#if defined(_GLIBCXX_RELEASE)
    t += ", libstdc++ " + std::to_string(_GLIBCXX_RELEASE) + " string ABI " + std::to_string(_GLIBCXX_USE_CXX11_ABI);
#elif defined(_LIBCPP_VERSION)
    t += ", libc++ " + std::to_string(_LIBCPP_VERSION) + " ABI " + std::to_string(_LIBCPP_ABI_VERSION);
#endif
#ifdef _GLIBCXX_DEBUG
    t += " debug";
#endif
    t += ", sizes";
    for (const auto size :
         {sizeof(void*), sizeof(std::string), sizeof(std::function<void()>), sizeof(transport_settings), sizeof(error),
          sizeof(result<transport_maker>), sizeof(transport_capabilities), sizeof(transport_handlers),
          sizeof(mapped_region), sizeof(std::chrono::steady_clock::time_point)})
      t += " " + std::to_string(size);
    return t;
  }();
  return text.c_str();
}

}  // namespace weir

extern "C" {

struct weir_transport_plugin {
  std::uint64_t size;        ///< of this struct
  std::uint32_t abi;         ///< weir::transport_abi
  const char* weir_version;  ///< weir::transport_weir_version
  const char* build;         ///< weir::transport_build()
  const char* name;          ///< as in the file's name, weir_transport_NAME.so
  const char* built_with;    ///< what it needs beside Weir, such as "UCX 1.13.1"; for people
  /// Checks the settings, and whether it can work here. The maker throws std::exception for what fails after that, such
  /// as threads or descriptors that can't be had.
  weir::result<weir::transport_maker> (*maker)(const weir::transport_settings& settings);
};

/// What `weir_transport_plugin_v1` is. What it returns stays in place.
using weir_transport_plugin_function = const weir_transport_plugin*();

}  // extern "C"

namespace weir {

inline weir_transport_plugin describe_plugin(const char* name, const char* built_with,
                                             result<transport_maker> (*maker)(const transport_settings&)) {
  return {
      sizeof(weir_transport_plugin), transport_abi, transport_weir_version, transport_build(), name, built_with, maker};
}

}  // namespace weir
