#pragma once
// Declarative JSON config. A plain struct lists its fields once, in a free function `describe` found by
// argument-dependent lookup; reading, writing, overriding and documenting it all follow from that list.
//
//   struct trainer_config { double lr = 1e-4; std::string loss = "ppo"; sampling_config sampling; };
//   template <class Fields>
//   void describe(Fields& f, trainer_config& c) {
//     f("lr", c.lr, "step size of AdamW", weir::above(0.0));
//     f("loss", c.loss, "objective", weir::one_of({"ppo", "grpo"}));
//     f("sampling", c.sampling, "how the policy draws tokens");
//   }
//
// A field is a bool, an integer, a float or double, a std::string, a std::vector of these, a std::optional of these
// (null: absent), a nlohmann::json (passed through as it is), or another described struct. Numbers are finite, as
// JSON's are; strings hold no NUL.

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir {

// ---- rules: any number of them a field ------------------------------------------------------------------------------

/// A bound on a number, or on each number of a list.
struct config_bound {
  enum class kind : unsigned char { at_least, above, at_most, below };
  kind what = kind::at_least;
  long double value = 0;
};
/// The only strings that a field, or each element of a list of strings, may be.
struct config_choice {
  std::vector<std::string> choices;
};
/// A string, list or passed-through value that must not be empty. With an empty default it makes a field required.
struct config_not_empty {};

using config_rule = std::variant<config_bound, config_choice, config_not_empty>;

template <class Number>
requires std::is_arithmetic_v<Number> config_bound at_least(Number x) {
  return {config_bound::kind::at_least, static_cast<long double>(x)};
}
template <class Number>
requires std::is_arithmetic_v<Number> config_bound above(Number x) {
  return {config_bound::kind::above, static_cast<long double>(x)};
}
template <class Number>
requires std::is_arithmetic_v<Number> config_bound at_most(Number x) {
  return {config_bound::kind::at_most, static_cast<long double>(x)};
}
template <class Number>
requires std::is_arithmetic_v<Number> config_bound below(Number x) {
  return {config_bound::kind::below, static_cast<long double>(x)};
}
inline config_choice one_of(std::vector<std::string> choices) { return {std::move(choices)}; }
inline config_not_empty not_empty() { return {}; }

// ---- the field list, without types ----------------------------------------------------------------------------------

namespace detail {

/// What JSON value a field takes.
struct config_shape {
  enum class base : unsigned char { boolean, integer, number, string, any, section };
  config_shape() = default;
  config_shape(base b) : what(b) {}  // NOLINT(google-explicit-constructor)
  base what = base::section;
  bool list = false;
  bool optional = false;
  std::int64_t least = 0;  ///< the type's own limits, if an integer
  std::uint64_t most = 0;
  bool single = false;  ///< a float: its limits are narrower than a double's
};

/// One field of a described object. `set` gets values that were checked; both refer to the object.
struct config_field {
  std::string name;
  std::string description;
  config_shape shape;
  std::vector<config_rule> rules;
  std::function<void(const nlohmann::json&)> set;
  std::function<nlohmann::json()> get;
  std::vector<config_field> fields;  ///< of a section
};

result<void> read_fields(const std::vector<config_field>& fields, const nlohmann::json& root,
                         const std::string& origin);
nlohmann::ordered_json write_fields(const std::vector<config_field>& fields);
std::string document_fields(const std::vector<config_field>& fields);
/// Throws std::logic_error if `field` has no usable name, or one that `fields` holds.
void add_field(std::vector<config_field>& fields, config_field field);
/// The shortest JSON number that reads back as this float.
nlohmann::json json_number(float value);

template <class V>
struct shape_of;  // of a described struct: none

template <>
struct shape_of<bool> {
  static config_shape get() { return {config_shape::base::boolean}; }
};
template <std::integral V>
struct shape_of<V> {
  static config_shape get() {
    config_shape shape{config_shape::base::integer};
    shape.least = static_cast<std::int64_t>(std::numeric_limits<V>::min());
    shape.most = static_cast<std::uint64_t>(std::numeric_limits<V>::max());
    return shape;
  }
};
template <>
struct shape_of<double> {
  static config_shape get() { return {config_shape::base::number}; }
};
template <>
struct shape_of<float> {
  static config_shape get() {
    config_shape shape{config_shape::base::number};
    shape.single = true;
    return shape;
  }
};
template <>
struct shape_of<std::string> {
  static config_shape get() { return {config_shape::base::string}; }
};
template <>
struct shape_of<nlohmann::json> {
  static config_shape get() { return {config_shape::base::any}; }
};
template <class V>
struct shape_of<std::vector<V>> {
  static config_shape get() {
    auto shape = shape_of<V>::get();
    shape.list = true;
    return shape;
  }
};
template <class V>
struct shape_of<std::optional<V>> {
  static config_shape get() {
    auto shape = shape_of<V>::get();
    shape.optional = true;
    return shape;
  }
};

template <class V>
concept config_leaf = requires {
  shape_of<V>::get();
};

template <class V>
void from_json_value(const nlohmann::json& in, V& out) {
  out = in.get<V>();
}
inline void from_json_value(const nlohmann::json& in, nlohmann::json& out) { out = in; }
template <class V>
void from_json_value(const nlohmann::json& in, std::optional<V>& out) {
  if (in.is_null())
    out.reset();
  else
    from_json_value(in, out.emplace());
}

template <class V>
nlohmann::json to_json_value(const V& value) {
  return value;
}
inline nlohmann::json to_json_value(float value) { return json_number(value); }
template <class V>
nlohmann::json to_json_value(const std::vector<V>& list) {
  auto out = nlohmann::json::array();
  for (const V& value : list) out.push_back(to_json_value(value));
  return out;
}
inline nlohmann::json to_json_value(const std::vector<bool>& list) { return list; }
template <class V>
nlohmann::json to_json_value(const std::optional<V>& value) {
  return value ? to_json_value(*value) : nlohmann::json();
}

/// The type that a rule on a field of type V looks at.
template <class V>
struct element_of {
  using type = V;
};
template <class V>
struct element_of<std::vector<V>> : element_of<V> {};
template <class V>
struct element_of<std::optional<V>> : element_of<V> {};

template <class V>
constexpr bool rule_fits(const config_bound*) {
  using element = typename element_of<V>::type;
  return std::is_arithmetic_v<element> && !std::is_same_v<element, bool>;
}
template <class V>
constexpr bool rule_fits(const config_choice*) {
  return std::is_same_v<typename element_of<V>::type, std::string>;
}
template <class V>
constexpr bool rule_fits(const config_not_empty*) {
  return requires(const V& v) { v.empty(); }
  || std::is_same_v<V, std::optional<std::string>>;
}

/// What `describe` is called with: turns typed fields into the list. It refers to the object described.
class config_fields {
 public:
  template <class V, class... Rules>
  void operator()(std::string name, V& value, std::string description, const Rules&... rules) {
    config_field field;
    field.name = std::move(name);
    field.description = std::move(description);
    field.rules = {config_rule(rules)...};
    if constexpr (config_leaf<V>) {
      static_assert((rule_fits<V>(static_cast<const Rules*>(nullptr)) && ...),
                    "a rule that says nothing about this type");
      field.shape = shape_of<V>::get();
      field.set = [&value](const nlohmann::json& in) { from_json_value(in, value); };
      field.get = [&value] { return to_json_value(value); };
    } else {
      static_assert(sizeof...(Rules) == 0, "rules stand at the fields of a section, not at the section");
      config_fields nested;
      describe(nested, value);
      field.fields = std::move(nested.list_);
    }
    add_field(list_, std::move(field));
  }

  const std::vector<config_field>& list() const noexcept { return list_; }

 private:
  std::vector<config_field> list_;
};

template <class T>
std::vector<config_field> fields_of(T& object) {
  config_fields fields;
  describe(fields, object);
  return fields.list();
}

}  // namespace detail

// ---- what to do with a described struct -----------------------------------------------------------------------------

/// A T from its JSON object; what is absent keeps the value of T{}. The rules hold for these values as well, so that a
/// `not_empty` field with an empty default is a required one. All problems are reported at once (errc::invalid_config):
/// a line each with the field's full dotted name, what was found and what is allowed, or, for an unknown field, the
/// nearest right name. `origin` names the source, such as the file's path. An integral 1e3 is an integer.
template <class T>
result<T> read_config(const nlohmann::json& root, const std::string& origin) {
  T object{};
  if (auto read = detail::read_fields(detail::fields_of(object), root, origin); !read) return fail(read.error());
  return object;
}

/// Applies "trainer.lr=1e-4" to a config that is not yet read. The value is JSON if it parses as such and a string
/// otherwise (a string that looks like a number is written '"1"'). Missing objects on the way are created. On an error
/// (invalid_argument) `root` is unchanged. Whether the field exists is read_config's question.
result<void> apply_override(nlohmann::json& root, const std::string& assignment);

/// The whole config, defaults included, in the order of declaration. Reading it gives the same T, doubles exact.
template <class T>
nlohmann::ordered_json config_to_json(const T& config) {
  T copy = config;
  return detail::write_fields(detail::fields_of(copy));
}

/// A text table, a line a field: dotted name, type, default, what is allowed, description.
template <class T>
std::string document_config() {
  T object{};
  return detail::document_fields(detail::fields_of(object));
}

}  // namespace weir
