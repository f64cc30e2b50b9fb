// config.json and generation_config.json of Hugging Face model directories, for the Qwen3 architecture.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "weir/policy/causal_lm.hpp"
#include "weir/runtime/files.hpp"

namespace weir {

namespace fs = std::filesystem;
using json = nlohmann::json;
using ordered_json = nlohmann::ordered_json;

namespace {

/// Reads fields of one file and keeps the first complaint.
class field_reader {
 public:
  field_reader(const json& object, std::string file) : object_(object), file_(std::move(file)) {}

  std::int64_t size(const char* name, std::int64_t most = std::int64_t{1} << 24) {
    const auto found = object_.find(name);
    if (found == object_.end()) return complain(name, "is missing"), 1;
    if (!found->is_number_integer() || *found < 1 || *found > most)
      return complain(name, "is " + found->dump() + ", and must be an integer from 1 to " + std::to_string(most)), 1;
    return found->get<std::int64_t>();
  }
  double number(const json& from, const char* name, double fallback, const std::string& prefix = {}) {
    const auto found = from.find(name);
    if (found == from.end() || found->is_null()) return fallback;
    if (!found->is_number() || found->get<double>() <= 0)
      return complain(prefix + name, "is " + found->dump() + ", and must be a positive number"), fallback;
    return found->get<double>();
  }
  double number(const char* name, double fallback) { return number(object_, name, fallback); }
  bool flag(const char* name, bool fallback) {
    const auto found = object_.find(name);
    if (found == object_.end() || found->is_null()) return fallback;
    if (!found->is_boolean()) return complain(name, "is " + found->dump() + ", and must be true or false"), fallback;
    return found->get<bool>();
  }
  std::string text(const char* name, const char* fallback) {
    const auto found = object_.find(name);
    if (found == object_.end() || found->is_null()) return fallback;
    if (!found->is_string()) return complain(name, "is " + found->dump() + ", and must be a string"), fallback;
    return found->get<std::string>();
  }
  bool has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  const json& at(const char* name) const { return object_[name]; }
  void complain(const std::string& name, const std::string& what) {
    if (complaint_.empty()) complaint_ = file_ + ": " + name + " " + what;
  }
  const std::string& complaint() const noexcept { return complaint_; }

 private:
  const json& object_;
  std::string file_;
  std::string complaint_;
};

void read_rope(field_reader& in, causal_lm_config& c) {
  // transformers 5 writes rope_parameters; published models have rope_theta at the top, and rope_scaling beside it.
  for (const char* place : {"rope_scaling", "rope_parameters"}) {
    if (!in.has(place)) continue;
    const auto& rope = in.at(place);
    if (!rope.is_object()) return in.complain(place, "is no object");
    for (const char* key : {"rope_type", "type"})
      if (auto kind = rope.find(key); kind != rope.end() && *kind != "default")
        return in.complain(std::string(place) + "." + key, "is " + kind->dump() + ": only \"default\" is supported");
    c.rope_theta = in.number(rope, "rope_theta", c.rope_theta, std::string(place) + ".");
  }
  c.rope_theta = in.number("rope_theta", c.rope_theta);
}

dtype read_dtype(field_reader& in) {
  const auto name = in.has("dtype") ? in.text("dtype", "float32") : in.text("torch_dtype", "float32");
  if (name == "float32") return dtype::f32;
  if (name == "float16") return dtype::f16;
  if (name == "bfloat16") return dtype::bf16;
  in.complain("dtype", "is \"" + name + "\": float32, float16 and bfloat16 are supported");
  return dtype::f32;
}

/// One token, a list of them, or null.
result<std::vector<token>> read_eos(const json& from, const fs::path& file, std::int64_t vocab) {
  std::vector<token> eos;
  const auto found = from.find("eos_token_id");
  if (found == from.end() || found->is_null()) return eos;
  const auto ids = found->is_array() ? *found : json::array({*found});
  for (const auto& id : ids) {
    if (!id.is_number_integer() || id < 0 || id >= vocab)
      return fail(errc::invalid_data, file.string() + ": eos_token_id " + id.dump() +
                                          " is no token of the vocabulary of " + std::to_string(vocab));
    eos.push_back(id.get<token>());
  }
  return eos;
}

/// Null, missing, or a list with the one architecture that there is.
bool right_architecture(field_reader& in) {
  if (!in.has("architectures")) return true;
  const auto& names = in.at("architectures");
  return names.is_array() &&
         (names.empty() || std::find(names.begin(), names.end(), "Qwen3ForCausalLM") != names.end());
}

void refuse_unsupported(field_reader& in, const causal_lm_config& c) {
  if (auto type = in.text("model_type", "qwen3"); type != "qwen3")
    in.complain("model_type", "is \"" + type + "\": only \"qwen3\" is supported");
  if (!right_architecture(in))
    in.complain("architectures", "is " + in.at("architectures").dump() + ": only \"Qwen3ForCausalLM\" is supported");
  if (in.flag("attention_bias", false)) in.complain("attention_bias", "is true: only false is supported");
  if (in.flag("use_sliding_window", false))
    in.complain("use_sliding_window", "is true: only full attention is supported");
  if (auto act = in.text("hidden_act", "silu"); act != "silu")
    in.complain("hidden_act", "is \"" + act + "\": only \"silu\" is supported");
  if (c.heads % c.kv_heads != 0)
    in.complain("num_attention_heads",
                "is " + std::to_string(c.heads) + ", no multiple of num_key_value_heads " + std::to_string(c.kv_heads));
  if (c.head_dim % 2 != 0) in.complain("head_dim", "is odd: rotary embedding needs pairs");
}

}  // namespace

result<causal_lm_config> read_causal_lm_config(const fs::path& directory) {
  const auto path = directory / "config.json";
  auto object = read_json_file(path);
  if (!object) return fail(object.error());
  if (!object->is_object()) return fail(errc::invalid_data, path.string() + ": is no JSON object");
  field_reader in(*object, path.string());
  causal_lm_config c;
  c.vocab_size = in.size("vocab_size");
  c.hidden_size = in.size("hidden_size");
  c.layers = in.size("num_hidden_layers", 4096);
  c.heads = in.size("num_attention_heads", 65536);
  c.kv_heads = in.has("num_key_value_heads") ? in.size("num_key_value_heads", 65536) : c.heads;
  c.head_dim = in.has("head_dim") ? in.size("head_dim", 65536) : std::max<std::int64_t>(c.hidden_size / c.heads, 1);
  c.intermediate_size = in.size("intermediate_size");
  c.max_positions =
      in.has("max_position_embeddings") ? in.size("max_position_embeddings", std::int64_t{1} << 40) : 32768;
  c.rms_norm_eps = in.number("rms_norm_eps", 1e-6);
  c.initializer_range = in.number("initializer_range", 0.02);
  c.tied_embeddings = in.flag("tie_word_embeddings", false);
  c.type = read_dtype(in);
  read_rope(in, c);
  refuse_unsupported(in, c);
  if (!in.complaint().empty()) return fail(errc::invalid_data, in.complaint());

  auto eos = read_eos(*object, path, c.vocab_size);
  if (!eos) return fail(eos.error());
  c.eos = std::move(*eos);
  std::error_code none;
  if (const auto more = directory / "generation_config.json"; fs::exists(more, none)) {
    auto generation = read_json_file(more);
    if (!generation) return fail(generation.error());
    auto precedent = read_eos(*generation, more, c.vocab_size);
    if (!precedent) return fail(precedent.error());
    if (!precedent->empty()) c.eos = std::move(*precedent);
  }
  return c;
}

result<void> write_causal_lm_config(const causal_lm_config& c, const fs::path& directory) {
  const char* type = c.type == dtype::f32 ? "float32" : c.type == dtype::f16 ? "float16" : "bfloat16";
  const auto eos = c.eos.empty()       ? ordered_json(nullptr)
                   : c.eos.size() == 1 ? ordered_json(c.eos[0])
                                       : ordered_json(c.eos);
  const ordered_json config{{"architectures", {"Qwen3ForCausalLM"}},
                            {"attention_bias", false},
                            {"attention_dropout", 0.0},
                            {"bos_token_id", nullptr},
                            {"dtype", type},
                            {"eos_token_id", eos},
                            {"head_dim", c.head_dim},
                            {"hidden_act", "silu"},
                            {"hidden_size", c.hidden_size},
                            {"initializer_range", c.initializer_range},
                            {"intermediate_size", c.intermediate_size},
                            {"max_position_embeddings", c.max_positions},
                            {"model_type", "qwen3"},
                            {"num_attention_heads", c.heads},
                            {"num_hidden_layers", c.layers},
                            {"num_key_value_heads", c.kv_heads},
                            {"rms_norm_eps", c.rms_norm_eps},
                            // Both spellings: transformers 5 reads the first, earlier ones the second.
                            {"rope_parameters", {{"rope_theta", c.rope_theta}, {"rope_type", "default"}}},
                            {"rope_theta", c.rope_theta},
                            {"sliding_window", nullptr},
                            {"tie_word_embeddings", c.tied_embeddings},
                            {"torch_dtype", type},
                            {"use_cache", true},
                            {"use_sliding_window", false},
                            {"vocab_size", c.vocab_size}};
  auto written = write_file_atomically(directory / "config.json", config.dump(2) + "\n");
  if (!written) return written;
  return write_file_atomically(directory / "generation_config.json",
                               ordered_json{{"eos_token_id", eos}}.dump(2) + "\n");
}

}  // namespace weir
