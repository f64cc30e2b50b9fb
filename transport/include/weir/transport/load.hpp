#pragma once
// Transports by name: those that are built in, and those that are plugins (weir/transport/plugin.hpp).

#include <string>
#include <vector>

#include "weir/transport/settings.hpp"
#include "weir/transport/transport.hpp"

namespace weir {

/// A transport that can be made.
struct known_transport {
  std::string name;
  std::string file;        ///< of the plugin; empty for what is built in
  std::string built_with;  ///< such as "UCX 1.13.1"; empty for what is built in
  transport_maker make;    ///< transports of one maker reach one another, also within the process
};

/// "inproc" and "tcp" are built in. Others are files weir_transport_NAME.so, looked for in the folders of
/// `plugin_folders()`, in that order; the first that fits is taken, and stays loaded. Errors: not_found, which names
/// every folder and why each file there was refused; invalid_config for settings that the transport does not take;
/// what the plugin itself says if it can't work here. Thread-safe.
result<known_transport> load_transport(const std::string& name, const transport_settings& settings = {});

/// Those of the variable WEIR_PLUGIN_PATH (with colons between), the program's own and lib/weir beside it, and
/// lib/weir where Weir was installed.
std::vector<std::string> plugin_folders();

/// All names that `load_transport` may know: what is built in, then the files that look like plugins. They are not
/// loaded.
std::vector<std::string> transport_names();

}  // namespace weir
