// Model directories as Hugging Face has them: round trips, every spelling, and errors that name file and field.
#include <sys/resource.h>
#include <unistd.h>

#include <bit>
#include <csignal>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "policy_support.hpp"
#include "weir/policy/safetensors.hpp"

using namespace weir::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// bfloat16 of a finite number, to the nearest, ties to even, as fp32.
float nearest_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  return std::bit_cast<float>(rounded & 0xFFFF0000U);
}

/// A saved model to spoil.
struct saved {
  temporary_folder folder;
  fs::path path = folder.path() / "model";
  weir::causal_lm model;

  explicit saved(weir::causal_lm_config config = small_config()) : model(weir::causal_lm::random(config, 1)) {
    REQUIRE(model.save(path));
  }
  fs::path weights() const { return path / "model.safetensors"; }
  void edit_config(const std::function<void(json&)>& edit, const char* file = "config.json") const {
    auto config = json::parse(slurp(path / file));
    edit(config);
    spill(path / file, config.dump());
  }
  /// Writes the weights again, after `edit` of what is to be written.
  void edit_weights(const std::function<void(std::vector<weir::safetensors_tensor>&)>& edit) const {
    auto file = weir::safetensors_file::open(weights());
    REQUIRE(file);
    std::vector<weir::safetensors_tensor> all;
    for (const auto& [name, e] : file->entries()) all.push_back({name, e.type, e.shape, e.bytes});
    edit(all);
    REQUIRE(weir::write_safetensors(weights(), all));
  }
  std::string refusal(weir::errc code = weir::errc::invalid_data) const {
    auto loaded = weir::causal_lm::load(path);
    REQUIRE_FALSE(loaded);
    INFO(loaded.error().message);
    CHECK(loaded.error().code == code);
    CHECK(loaded.error().message.find(path.string()) != std::string::npos);
    return loaded.error().message;
  }
};

void says(const std::string& message, std::initializer_list<const char*> all) {
  INFO(message);
  for (const char* what : all) {
    INFO(what);
    CHECK(message.find(what) != std::string::npos);
  }
}

weir::safetensors_tensor& named(std::vector<weir::safetensors_tensor>& all, const std::string& name) {
  for (auto& t : all)
    if (t.name == name) return t;
  throw std::logic_error(name);
}

/// The largest file that this process may write, for the time of a scope: what is longer fails as on a full disk.
class file_size_limit {
 public:
  explicit file_size_limit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = SIG_DFL;
};

}  // namespace

TEST_CASE("a model comes back as it was saved: fp32 bit for bit, half types rounded to the nearest") {
  auto config = small_config(GENERATE(true, false));
  config.type = GENERATE(weir::dtype::f32, weir::dtype::f16, weir::dtype::bf16);
  config.eos = GENERATE(std::vector<weir::token>{}, std::vector<weir::token>{3}, std::vector<weir::token>{3, 36});
  config.rope_theta = 12345.5;
  config.rms_norm_eps = 1e-5;
  saved s(config);
  auto loaded = weir::causal_lm::load(s.path);
  REQUIRE(loaded);
  CHECK(loaded->config() == config);
  const auto expected = config.type == weir::dtype::f32   ? s.model.flat()
                        : config.type == weir::dtype::f16 ? s.model.flat().to(at::kHalf).to(at::kFloat)
                                                          : s.model.flat().to(at::kBFloat16).to(at::kFloat);
  CHECK(same_bits(loaded->flat(), expected));
  CHECK(same_bits(loaded->flat(), s.model.flat()) == (config.type == weir::dtype::f32));
  // Once rounded, always the same.
  REQUIRE(loaded->save(s.folder.path() / "again"));
  CHECK((slurp(s.folder.path() / "again" / "model.safetensors") == slurp(s.weights())));
  CHECK((slurp(s.folder.path() / "again" / "config.json") == slurp(s.path / "config.json")));
}

TEST_CASE("bfloat16 is rounded to nearest, ties to even") {
  auto config = small_config();
  config.type = weir::dtype::bf16;
  auto model = weir::causal_lm::random(config, 1);
  auto* values = model.flat().data_ptr<float>();
  // Halfway below an even and above an odd significand, just off halfway, a carry into the exponent, both zeros.
  const std::vector<std::uint32_t> bits{0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF,
                                        0x3FFFFFFF, 0xBF818000, 0x80000000, 0x00000001};
  const std::vector<std::uint32_t> rounded{0x3F800000, 0x3F820000, 0x3F810000, 0x3F800000,
                                           0x40000000, 0xBF820000, 0x80000000, 0x00000000};
  for (std::size_t i = 0; i < bits.size(); ++i) values[i] = std::bit_cast<float>(bits[i]);
  temporary_folder folder;
  REQUIRE(model.save(folder.path() / "model"));
  auto loaded = weir::causal_lm::load(folder.path() / "model");
  REQUIRE(loaded);
  const auto* back = loaded->flat().data_ptr<float>();
  for (std::size_t i = 0; i < bits.size(); ++i) CHECK(std::bit_cast<std::uint32_t>(back[i]) == rounded[i]);
  int wrong = 0;
  for (std::int64_t i = 0; i < model.flat().numel(); ++i) wrong += back[i] != nearest_bf16(values[i]) ? 1 : 0;
  CHECK(wrong == 0);
}

TEST_CASE("the files of transformers load, and other files in the directory are left alone by save") {
  temporary_folder folder;
  const auto path = folder.path() / "model";
  fs::copy(fs::path(WEIR_FIXTURES) / "qwen3-tiny", path, fs::copy_options::recursive);
  auto model = weir::causal_lm::load(path);
  REQUIRE(model);
  CHECK(model->config().tied_embeddings);
  CHECK(model->config().rope_theta == 1'000'000);
  CHECK(model->config().head_dim == 24);
  const auto golden = slurp(path / "golden.json");
  REQUIRE(model->save(path));
  CHECK((slurp(path / "golden.json") == golden));
  auto again = weir::causal_lm::load(path);
  REQUIRE(again);
  CHECK(same_bits(model->flat(), again->flat()));
}

TEST_CASE("shards load as one file does, through the index") {
  saved s;
  auto file = weir::safetensors_file::open(s.weights());
  REQUIRE(file);
  std::vector<weir::safetensors_tensor> shards[2];
  json map;
  for (const auto& [name, e] : file->entries()) {
    const auto which = map.size() % 2;
    shards[which].push_back({name, e.type, e.shape, e.bytes});
    map[name] = which == 0 ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  REQUIRE(weir::write_safetensors(s.path / "model-00001-of-00002.safetensors", shards[0]));
  REQUIRE(weir::write_safetensors(s.path / "model-00002-of-00002.safetensors", shards[1]));
  fs::remove(s.weights());
  const auto index = s.path / "model.safetensors.index.json";
  spill(index, json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  auto loaded = weir::causal_lm::load(s.path);
  REQUIRE(loaded);
  CHECK(same_bits(loaded->flat(), s.model.flat()));

  fs::remove(s.path / "model-00002-of-00002.safetensors");
  says(s.refusal(weir::errc::not_found), {"model-00002-of-00002.safetensors"});
  auto outside = map;
  outside["model.norm.weight"] = "../elsewhere.safetensors";
  spill(index, json{{"weight_map", outside}}.dump());
  says(s.refusal(), {"index.json", "model.norm.weight"});
  outside["model.norm.weight"] = std::string("model-00001-of-00002.safetensors\0x", 34);
  spill(index, json{{"weight_map", outside}}.dump());
  says(s.refusal(), {"index.json", "model.norm.weight"});
  spill(index, json{{"weights", map}}.dump());
  says(s.refusal(), {"index.json", "weight_map"});
  spill(index, "{");
  says(s.refusal(), {"index.json"});
}

TEST_CASE("both spellings of rope_theta and of dtype are read") {
  saved s;
  auto read = [&](const std::function<void(json&)>& edit) {
    auto config = json::parse(slurp(s.path / "config.json"));
    for (const char* key : {"rope_theta", "rope_parameters", "dtype", "torch_dtype"}) config.erase(key);
    edit(config);
    spill(s.path / "config.json", config.dump());
    auto c = weir::read_causal_lm_config(s.path);
    REQUIRE(c);
    return *c;
  };
  CHECK(read([](json& c) { c["rope_theta"] = 5e5; }).rope_theta == 5e5);
  CHECK(read([](json& c) {
          c["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "default"}};
        }).rope_theta == 5e5);
  CHECK(read([](json& c) {
          c["rope_theta"] = 5e5;
          c["rope_scaling"] = nullptr;
        }).rope_theta == 5e5);
  CHECK(read([](json&) {}).rope_theta == 10000);
  CHECK(read([](json&) {}).type == weir::dtype::f32);
  CHECK(read([](json& c) { c["dtype"] = "bfloat16"; }).type == weir::dtype::bf16);
  CHECK(read([](json& c) { c["torch_dtype"] = "bfloat16"; }).type == weir::dtype::bf16);
  CHECK(read([](json& c) { c["torch_dtype"] = "float16"; }).type == weir::dtype::f16);
  // What may be left out has its usual value.
  const auto bare = read([](json& c) {
    for (const char* key : {"num_key_value_heads", "head_dim", "architectures", "max_position_embeddings"})
      c.erase(key);
  });
  CHECK(bare.kv_heads == 4);
  CHECK(bare.head_dim == 24 / 4);
}

TEST_CASE("the end tokens of generation_config.json take precedence") {
  saved s;
  s.edit_config([](json& c) { c["eos_token_id"] = 1; });
  s.edit_config([](json& c) { c["eos_token_id"] = {2, 3}; }, "generation_config.json");
  CHECK(weir::read_causal_lm_config(s.path)->eos == std::vector<weir::token>{2, 3});
  fs::remove(s.path / "generation_config.json");
  CHECK(weir::read_causal_lm_config(s.path)->eos == std::vector<weir::token>{1});
}

TEST_CASE("a config that cannot be right is refused, by file and field") {
  auto refused = [](const std::string& field, const json& value) {
    saved s;
    s.edit_config([&](json& c) { c[field] = value; });
    INFO(field << " = " << value.dump());
    const auto message = s.refusal();
    says(message, {"config.json", field.c_str()});
  };
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings"})
    for (const auto& value : {json(0), json(-1), json(1.5), json("24"), json(std::uint64_t{1} << 63), json(1e12)})
      refused(field, value);
  refused("model_type", "llama");
  refused("model_type", 3);
  refused("architectures", json::array({"LlamaForCausalLM"}));
  refused("hidden_act", "gelu");
  refused("attention_bias", true);
  refused("use_sliding_window", true);
  refused("tie_word_embeddings", "yes");
  refused("rms_norm_eps", -1);
  refused("rms_norm_eps", "small");
  refused("rope_theta", "big");
  refused("rope_theta", 0);
  refused("rope_theta", -10000.0);
  refused("rope_parameters", 3);
  refused("rope_parameters", {{"rope_theta", -1}});
  refused("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}});
  refused("rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 10000.0}});
  refused("rope_scaling", 3);
  refused("dtype", "float8");
  refused("dtype", 8);
  refused("num_key_value_heads", 3);
  refused("head_dim", 11);
  refused("eos_token_id", 37);
  refused("eos_token_id", -1);
  refused("eos_token_id", std::int64_t{1} << 32);
  refused("eos_token_id", "</s>");
  refused("eos_token_id", json::array({1, "x"}));
}

TEST_CASE("rope scaling of another type is refused in the spelling of older files, too") {
  saved s;
  s.edit_config([](json& c) {
    c.erase("rope_parameters");
    c["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  });
  says(s.refusal(), {"config.json", "rope_scaling.type", "linear"});
}

TEST_CASE("a config that is missing, no JSON, or no object") {
  saved s;
  for (const char* content : {"", "{", "not json", "{\"vocab_size\": 1,}", "\xFF\xFE"}) {
    spill(s.path / "config.json", content);
    says(s.refusal(), {"config.json"});
  }
  spill(s.path / "config.json", "[]");
  says(s.refusal(), {"config.json", "no JSON object"});
  fs::remove(s.path / "config.json");
  says(s.refusal(weir::errc::not_found), {"config.json"});
}

TEST_CASE("a required field that is missing is named") {
  for (const char* field :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) {
    saved s;
    s.edit_config([&](json& c) { c.erase(field); });
    says(s.refusal(), {"config.json", field, "missing"});
  }
}

TEST_CASE("weights that do not fit the config are refused, by file and tensor") {
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  saved s;
  SECTION("a tensor is missing") {
    s.edit_weights([&](auto& all) { std::erase_if(all, [&](const auto& t) { return t.name == name; }); });
    says(s.refusal(), {"model.safetensors", name.c_str(), "missing"});
  }
  SECTION("a tensor has another shape") {
    s.edit_weights([&](auto& all) { std::swap(named(all, name).shape[0], named(all, name).shape[1]); });
    says(s.refusal(), {"model.safetensors", name.c_str(), "[24,40]", "[40,24]"});
  }
  SECTION("a tensor has another type") {
    s.edit_weights([&](auto& all) { named(all, name).type = "I32"; });
    says(s.refusal(weir::errc::unsupported), {"model.safetensors", name.c_str(), "I32"});
  }
  SECTION("there is a tensor too many") {
    s.edit_weights([&](auto& all) {
      all.push_back({"model.layers.2.input_layernorm.weight", "F32", {24}, named(all, "model.norm.weight").bytes});
    });
    says(s.refusal(), {"model.layers.2.input_layernorm.weight"});
  }
  SECTION("the file is cut short") {
    fs::resize_file(s.weights(), fs::file_size(s.weights()) - 1);
    says(s.refusal(), {"model.safetensors", "truncated"});
  }
  SECTION("the header claims more than there is") {
    auto content = slurp(s.weights());
    content[5] = 1;
    spill(s.weights(), content);
    says(s.refusal(), {"model.safetensors", "header claims"});
  }
  SECTION("the file is missing") {
    fs::remove(s.weights());
    says(s.refusal(weir::errc::not_found), {"model.safetensors"});
  }
  SECTION("the head is missing from an untied model") {
    s.edit_config([](json& c) { c["tie_word_embeddings"] = false; });
    says(s.refusal(), {"lm_head.weight", "missing"});
  }
}

TEST_CASE("a tied model may carry its head all the same") {
  saved s;
  s.edit_weights([](auto& all) {
    auto head = named(all, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    all.push_back(head);
  });
  auto loaded = weir::causal_lm::load(s.path);
  REQUIRE(loaded);
  CHECK(same_bits(loaded->flat(), s.model.flat()));
}

TEST_CASE("tensors of several types in one file are each read as what they are") {
  saved s;
  const auto half = s.model.flat().to(at::kBFloat16);
  const auto& spec = s.model.layout().tensors[0];
  s.edit_weights([&](auto& all) {
    named(all, spec.name) = {
        spec.name, "BF16", spec.shape, {static_cast<const std::byte*>(half.data_ptr()), spec.bytes / 2}};
  });
  auto loaded = weir::causal_lm::load(s.path);
  REQUIRE(loaded);
  const auto count = static_cast<std::int64_t>(spec.bytes / 4), rest = s.model.flat().numel() - count;
  CHECK(same_bits(loaded->flat().narrow(0, 0, count), half.narrow(0, 0, count).to(at::kFloat)));
  CHECK(same_bits(loaded->flat().narrow(0, count, rest), s.model.flat().narrow(0, count, rest)));
}

TEST_CASE("a save that fails leaves the old files") {
  saved s;
  const auto weights = slurp(s.weights()), config = slurp(s.path / "config.json");
  auto other = weir::causal_lm::random(small_config(), 2);
  auto unchanged = [&] {
    CHECK((slurp(s.weights()) == weights));
    CHECK((slurp(s.path / "config.json") == config));
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& f : fs::directory_iterator(s.path)) ++files;
    CHECK(files == 3);  // nothing half-written beside them
  };
  SECTION("no room on the disk") {
    auto failed = [&] {
      file_size_limit limit(4096);
      return other.save(s.path);
    }();
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == weir::errc::io);
    CHECK(failed.error().message.find("model.safetensors") != std::string::npos);
    unchanged();
  }
  SECTION("no permission to write") {
    if (::geteuid() == 0) return;  // root may write everywhere
    fs::permissions(s.path, fs::perms::owner_read | fs::perms::owner_exec);
    auto failed = other.save(s.path);
    fs::permissions(s.path, fs::perms::owner_all);
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == weir::errc::io);
    unchanged();
  }
  SECTION("the directory cannot be made") {
    auto failed = other.save(s.path / "config.json" / "below");
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == weir::errc::io);
    unchanged();
  }
}
