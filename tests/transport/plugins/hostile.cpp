// Plugins that are wrong in one way each, chosen by a macro.
#include "weir/transport/inproc.hpp"
#include "weir/transport/plugin.hpp"

namespace {

[[maybe_unused]] weir_transport_plugin almost() {
  return weir::describe_plugin("hostile", "nothing",
                               [](const weir::transport_settings&) -> weir::result<weir::transport_maker> {
                                 return weir::inproc_maker(weir::make_inproc_fabric());
                               });
}

#ifdef WEIR_HOSTILE_NEEDS
extern "C" int weir_gone();
[[maybe_unused]] const int needed = weir_gone();
#endif

}  // namespace

#ifndef WEIR_HOSTILE_NO_ENTRY
extern "C" __attribute__((visibility("default"))) const weir_transport_plugin* weir_transport_plugin_v1() {
#ifdef WEIR_HOSTILE_NULL
  return nullptr;
#else
  static auto mine = almost();
  WEIR_HOSTILE_CHANGE;
  return &mine;
#endif
}
#endif
