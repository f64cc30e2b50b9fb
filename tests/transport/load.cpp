// Transports by name, their settings, and plugins that are not what they should be.
#include "weir/transport/load.hpp"

#include <cstdlib>
#include <fstream>

#include "conformance.hpp"
#include "weir/transport/plugin.hpp"

using namespace weir::testing;
namespace fs = std::filesystem;

namespace {

const fs::path plugins = WEIR_TEST_PLUGINS;

/// WEIR_PLUGIN_PATH while it lives.
struct plugin_path {
  explicit plugin_path(const std::string& folders) { ::setenv("WEIR_PLUGIN_PATH", folders.c_str(), 1); }
  ~plugin_path() { ::unsetenv("WEIR_PLUGIN_PATH"); }
  plugin_path(const plugin_path&) = delete;
  plugin_path& operator=(const plugin_path&) = delete;
};

/// An empty folder while it lives.
struct temporary {
  temporary() {
    char name[] = "/tmp/weir-plugins-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder = name;
  }
  ~temporary() { fs::remove_all(folder); }
  temporary(const temporary&) = delete;
  temporary& operator=(const temporary&) = delete;
  fs::path folder;
};

std::string refusal(const std::string& name, const weir::transport_settings& settings = {}) {
  const auto loaded = weir::load_transport(name, settings);
  REQUIRE_FALSE(loaded);
  return loaded.error().message;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("minimal, a plugin, conforms") {
  const plugin_path path(plugins);
  auto loaded = weir::load_transport("minimal");
  INFO((loaded ? std::string() : loaded.error().message));
  REQUIRE(loaded);
  CHECK(loaded->file == (plugins / "weir_transport_minimal.so").string());
  CHECK(loaded->built_with == "nothing else");
  conformance({loaded->make});
}

TEST_CASE("load: what is built in comes by name too, with settings, and conforms") {
  auto tcp =
      weir::load_transport("tcp", {{"streams", "2"}, {"chunk", "64k"}, {"shared_memory", "off"}, {"token", "a"}});
  REQUIRE(tcp);
  auto server = tcp->make({}), client = tcp->make({});
  CHECK_FALSE(server->capabilities().map);
  auto to = client->connect(*server->listen("127.0.0.1:0"), pair_of_transports::soon());
  REQUIRE(to);
  CHECK((*to)->lane() == "tcp, 2 streams");
  auto inproc = weir::load_transport("inproc");
  REQUIRE(inproc);
  conformance({inproc->make});
}

TEST_CASE("load: a wrong setting is named, with what is allowed and what was meant") {
  const auto text = refusal("tcp", {{"steams", "2"},
                                    {"threads", "0"},
                                    {"chunk", "1x"},
                                    {"shared_memory", "maybe"},
                                    {"silence_ms", "99999999999"},
                                    {"token", std::string(256, 'x')}});
  CHECK(has(text, "no setting \"steams\"; did you mean \"streams\"?"));
  CHECK(has(text, "It has: streams, threads, chunk, token, silence_ms, shared_memory"));
  CHECK(has(text, "threads is a number of at least 1 and at most 256, found \"0\""));
  CHECK(has(text, "chunk is a number of bytes, such as 65536, 64k or 1m, of at least 4096, found \"1x\""));
  CHECK(has(text, "shared_memory is on or off, found \"maybe\""));
  CHECK(has(text, "silence_ms is a number"));
  CHECK(has(text, "token has at most 255 bytes"));
  CHECK(weir::load_transport("tcp", {{"streams", "x"}}).error().code == weir::errc::invalid_config);
  for (const char* wrong :
       {"", "-1", " 4", "4 ", "1.5", "0x4", "18446744073709551616", "17179869184g", "18014398509481985k", "k", "4kk"})
    CHECK_FALSE(weir::load_transport("tcp", {{"chunk", wrong}}));
  CHECK(weir::load_transport("tcp", {{"chunk", "1g"}}));
  CHECK(has(refusal("inproc", {{"anything", ""}}), "It has none."));
  const plugin_path path(plugins);
  CHECK(has(refusal("minimal", {{"refuze", "on"}}), "did you mean \"refuse\"?"));
  const auto told = weir::load_transport("minimal", {{"refuse", "on"}});
  REQUIRE_FALSE(told);
  CHECK(told.error().code == weir::errc::unsupported);
  CHECK(has(told.error().message, "told to refuse"));
  CHECK(has(told.error().message, "weir_transport_minimal.so"));
}

TEST_CASE("load: a name that nothing has says where it was looked for, and what was meant") {
  const temporary empty;
  const plugin_path path(empty.folder.string() + ":/does/not/exist:" + plugins.string());
  const auto text = refusal("minimol");
  CHECK(has(text, "did you mean \"minimal\"?"));
  CHECK(has(text, empty.folder.string() + ": there is none"));
  CHECK(has(text, "/does/not/exist: there is none"));
  for (const auto& folder : weir::plugin_folders()) CHECK(has(text, folder));
  CHECK(weir::plugin_folders().size() >= 5);
  CHECK(weir::load_transport("nothing").error().code == weir::errc::not_found);
  for (const char* none : {"", "../minimal", "a/b", "Minimal", "mini mal"})
    CHECK(weir::load_transport(none).error().code == weir::errc::invalid_argument);
  const auto names = weir::transport_names();
  CHECK(std::count(names.begin(), names.end(), "minimal") == 1);
}

TEST_CASE("load: a plugin that is not what it should be is refused, and why") {
  struct wrong {
    const char* file;
    std::vector<std::string> says;
  };
  const std::vector<wrong> wrongs{
      {"abi", {"transport ABI 77", "build it against this Weir"}},
      {"build", {"built otherwise", "another compiler", weir::transport_build()}},
      {"version", {"Weir 99.0"}},
      {"size", {"description has", "build it against this Weir"}},
      {"tiny", {"too few bytes"}},
      {"name", {"calls itself nobody"}},
      {"nothing_made", {"makes nothing"}},
      {"no_entry", {"it has no weir_transport_plugin_v1"}},
      {"null", {"returned nothing"}},
      {"needs", {"libweir_gone.so", "No such file"}},
  };
  for (const auto& w : wrongs) {
    INFO(w.file);
    const temporary place;
    const auto file = place.folder / "weir_transport_hostile.so";
    fs::copy_file(plugins / ("hostile_" + std::string(w.file) + ".so"), file);
    const plugin_path path(place.folder);
    const auto text = refusal("hostile");
    INFO(text);
    CHECK(has(text, file.string()));
    for (const auto& part : w.says) CHECK(has(text, part));
  }
  const temporary place;
  const auto file = place.folder / "weir_transport_hostile.so";
  const plugin_path path(place.folder);
  std::ofstream(file).put('x');
  CHECK(has(refusal("hostile"), "no shared object"));
  std::ofstream(file, std::ios::trunc).close();
  CHECK(has(refusal("hostile"), "no shared object"));
  std::ofstream(file, std::ios::trunc) << std::string(100'000, 'x');
  CHECK(has(refusal("hostile"), "no shared object"));
  fs::remove(file);
  fs::create_directory(file);
  CHECK(has(refusal("hostile"), file.string()));
}

TEST_CASE("load: the first plugin that fits is taken, past those that don't") {
  const temporary bad, good;
  fs::copy_file(plugins / "hostile_null.so", bad.folder / "weir_transport_hostile.so");
  fs::copy_file(plugins / "hostile_right.so", good.folder / "libweir_transport_hostile.so");
  const plugin_path path(bad.folder.string() + ":" + good.folder.string());
  const auto loaded = weir::load_transport("hostile");
  REQUIRE(loaded);
  CHECK(loaded->file == (good.folder / "libweir_transport_hostile.so").string());
  CHECK(loaded->make({})->capabilities().name == "inproc");
}
