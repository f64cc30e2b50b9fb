#include "weir/transport/load.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "weir/transport/inproc.hpp"
#include "weir/transport/plugin.hpp"
#include "weir/transport/tcp.hpp"

namespace weir {

namespace fs = std::filesystem;

static_assert(std::string_view(transport_weir_version) == WEIR_PROJECT_VERSION,
              "plugin.hpp names another version than CMakeLists.txt");

namespace {

constexpr const char* prefix = "weir_transport_";
constexpr const char* entry = "weir_transport_plugin_v1";

bool is_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

result<transport_maker> inproc_by_settings(const transport_settings& settings) {
  if (auto read = settings_reader("inproc", settings).end(); !read) return fail(read.error());
  return inproc_maker(make_inproc_fabric());
}

result<transport_maker> tcp_by_settings(const transport_settings& settings) {
  tcp_settings s;
  settings_reader r("tcp", settings);
  r.number("streams", s.streams, 1, 64)
      .number("threads", s.threads, 1, 256)
      .bytes("chunk", s.chunk, 4096)
      .text("token", s.token, 255)
      .milliseconds("silence_ms", s.silence, 1000)
      .flag("shared_memory", s.shared_memory);
  if (auto read = r.end(); !read) return fail(read.error());
  return tcp_maker(std::move(s));
}

/// Closes it unless it is kept.
class library {
 public:
  explicit library(const std::string& file) : handle_(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~library() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  library(const library&) = delete;
  library& operator=(const library&) = delete;
  void* handle() const noexcept { return handle_; }
  void keep() noexcept { handle_ = nullptr; }

 private:
  void* handle_;
};

/// What dlopen said, and what helps.
std::string why_not_opened() {
  const char* said = ::dlerror();
  std::string why = said == nullptr ? "it cannot be loaded" : said;
  constexpr std::pair<const char*, const char*> packages[]{
      {"libucp.so", "libucx0"}, {"libucs.so", "libucx0"}, {"libuct.so", "libucx0"}, {"libucm.so", "libucx0"}};
  for (const auto& [file, package] : packages)
    if (why.find(file) != std::string::npos && why.find("No such file") != std::string::npos)
      return why + ": install the package that has it (Debian's is " + package + ": apt install " + package + ")";
  if (why.find("invalid ELF header") != std::string::npos || why.find("file too short") != std::string::npos)
    return "it is no shared object: " + why;
  return why;
}

std::string text_of(const char* text) { return text == nullptr ? "nothing" : text; }

/// Why the plugin can't be used, or empty. Of the fields only those are read that were checked to be there.
std::string mismatch(const weir_transport_plugin* p, const std::string& name) {
  if (p == nullptr) return "its entry point returned nothing";
  if (p->size < offsetof(weir_transport_plugin, weir_version)) return "it describes itself with too few bytes";
  if (p->abi != transport_abi)
    return "it is for transport ABI " + std::to_string(p->abi) + ", this Weir has " + std::to_string(transport_abi) +
           ": build it against this Weir";
  if (p->size != sizeof(weir_transport_plugin))
    return "its description has " + std::to_string(p->size) + " bytes, this Weir's " +
           std::to_string(sizeof(weir_transport_plugin)) + ": build it against this Weir";
  if (text_of(p->weir_version) != transport_weir_version)
    return "it is built against Weir " + text_of(p->weir_version) + ", this is " + transport_weir_version;
  if (text_of(p->build) != transport_build())
    return "it is built otherwise than this Weir: \"" + text_of(p->build) + "\" against \"" + transport_build() + "\"";
  if (text_of(p->name) != name) return "it calls itself " + text_of(p->name);
  if (p->maker == nullptr) return "it makes nothing";
  return {};
}

struct candidate {
  std::string refused;  ///< why; empty if it fits
  const weir_transport_plugin* plugin = nullptr;
};

candidate examine(const std::string& file, const std::string& name) {
  library opened(file);
  if (opened.handle() == nullptr) return {why_not_opened()};
  void* symbol = ::dlsym(opened.handle(), entry);
  if (symbol == nullptr) return {std::string("it is no Weir transport plugin of this kind: it has no ") + entry};
  const auto* plugin = reinterpret_cast<weir_transport_plugin_function*>(symbol)();
  auto wrong = mismatch(plugin, name);
  if (!wrong.empty()) return {std::move(wrong)};
  opened.keep();  // for good: its transports' code, and that of what it links, is there
  return {{}, plugin};
}

fs::path own_folder() {
  std::error_code failed;
  const auto program = fs::read_symlink("/proc/self/exe", failed);
  return failed ? fs::path() : program.parent_path();
}

}  // namespace

std::vector<std::string> plugin_folders() {
  std::vector<std::string> folders;
  const auto add = [&](const fs::path& folder) {
    auto text = folder.lexically_normal().string();
    if (!text.empty() && std::find(folders.begin(), folders.end(), text) == folders.end()) folders.push_back(text);
  };
  if (const char* named = ::secure_getenv("WEIR_PLUGIN_PATH")) {
    std::string text(named);
    for (std::size_t at = 0; at <= text.size();) {
      const auto end = std::min(text.find(':', at), text.size());
      add(text.substr(at, end - at));
      at = end + 1;
    }
  }
  if (const auto here = own_folder(); !here.empty()) {
    add(here);
    // A program in PREFIX/bin, or one of Weir's own in PREFIX/libexec/weir/bench.
    const auto of_weir =
        here.parent_path().parent_path().filename() == "libexec" && here.parent_path().filename() == "weir";
    const auto lib = here / (of_weir ? "../../../lib" : "../lib");
    add(lib / "weir");
#ifdef WEIR_MULTIARCH
    add(lib / WEIR_MULTIARCH / "weir");
#endif
  }
#ifdef WEIR_PLUGIN_FOLDER
  add(WEIR_PLUGIN_FOLDER);
#endif
  return folders;
}

result<known_transport> load_transport(const std::string& name, const transport_settings& settings) {
  const auto built_in = [&](result<transport_maker> made) -> result<known_transport> {
    if (!made) return fail(made.error());
    return known_transport{name, {}, {}, std::move(*made)};
  };
  if (name == "inproc") return built_in(inproc_by_settings(settings));
  if (name == "tcp") return built_in(tcp_by_settings(settings));
  if (!is_name(name))
    return fail(errc::invalid_argument, "a transport's name has small letters, digits and _, found \"" + name + "\"");
  std::string looked_at;
  for (const auto& folder : plugin_folders()) {
    std::string found;
    for (const auto& file : {folder + "/" + prefix + name + ".so", folder + "/lib" + prefix + name + ".so"}) {
      std::error_code ignored;
      if (!fs::exists(file, ignored)) continue;
      const auto c = examine(file, name);
      if (c.plugin == nullptr) {
        found += "\n  " + file + ": " + c.refused;
        continue;
      }
      auto made = c.plugin->maker(settings);
      if (!made) return fail(made.error().code, made.error().message + " (" + file + ")");
      return known_transport{name, file, text_of(c.plugin->built_with), std::move(*made)};
    }
    looked_at += found.empty() ? "\n  " + folder + ": there is none" : found;
  }
  const auto meant = nearest_name(name, transport_names());
  return fail(errc::not_found,
              "no transport \"" + name + "\"" +
                  (meant.empty() || meant == name ? "." : "; did you mean \"" + meant + "\"?") +
                  " Built in are inproc and tcp; as a plugin it would be " + prefix + name +
                  ".so in a folder of WEIR_PLUGIN_PATH, beside the program or where Weir is installed:" + looked_at);
}

std::vector<std::string> transport_names() {
  std::vector<std::string> names{"inproc", "tcp"};
  for (const auto& folder : plugin_folders()) {
    std::error_code failed;
    for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
      auto name = at->path().filename().string();
      if (name.starts_with("lib")) name.erase(0, 3);
      if (!name.starts_with(prefix) || !name.ends_with(".so")) continue;
      name = name.substr(std::strlen(prefix), name.size() - std::strlen(prefix) - 3);
      if (is_name(name) && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

}  // namespace weir
