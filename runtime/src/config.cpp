#include "weir/runtime/config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "config_names.hpp"

namespace weir {

namespace {

using detail::config_field;
using detail::config_shape;
using nlohmann::json;
using base = detail::config_shape::base;

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::string number_text(long double x) {
  if (std::abs(x) < 1e18L && x == std::floor(x)) return std::to_string(static_cast<std::int64_t>(x));
  return json(static_cast<double>(x)).dump();
}

/// JSON as text of bounded length; bytes that are no UTF-8 become a replacement character.
std::string short_text(const json& value) {
  constexpr std::size_t most = 60;
  auto text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() <= most) return text;
  auto end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::string found_text(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::boolean:
      return "boolean " + short_text(value);
    case json::value_t::string:
      return "string " + short_text(value);
    case json::value_t::array:
      return "array " + short_text(value);
    case json::value_t::object:
      return "object " + short_text(value);
    default:
      return "number " + short_text(value);
  }
}

std::string type_text(const config_shape& shape) {
  std::string text;
  switch (shape.what) {
    case base::boolean:
      text = "boolean";
      break;
    case base::integer:
      text = "integer";
      break;
    case base::number:
      text = "number";
      break;
    case base::string:
      text = "string";
      break;
    case base::any:
      text = "any JSON";
      break;
    case base::section:
      text = "object";
      break;
  }
  if (shape.list) text = "list of " + text;
  if (shape.optional) text += " or null";
  return text;
}

std::string rule_text(const config_rule& rule) {
  if (const auto* bound = std::get_if<config_bound>(&rule)) {
    static constexpr std::array words{"at least ", "above ", "at most ", "below "};
    return words[static_cast<std::size_t>(bound->what)] + number_text(bound->value);
  }
  if (const auto* choice = std::get_if<config_choice>(&rule)) {
    std::string text = "one of ";
    for (const auto& c : choice->choices) text += (&c == &choice->choices.front() ? "" : ", ") + json(c).dump();
    return text;
  }
  return "not empty";
}

bool bounds_below(const config_rule& rule) {
  const auto* bound = std::get_if<config_bound>(&rule);
  return bound != nullptr && (bound->what == config_bound::kind::at_least || bound->what == config_bound::kind::above);
}

/// The rules as text; an unsigned field says that it has no negative values even if no rule does.
std::string rules_text(const config_field& field) {
  std::string text;
  const bool is_unsigned = field.shape.what == base::integer && field.shape.least == 0;
  if (is_unsigned && std::none_of(field.rules.begin(), field.rules.end(), bounds_below)) text = "at least 0";
  for (const auto& rule : field.rules) text += (text.empty() ? "" : ", ") + rule_text(rule);
  return text;
}

std::string allowed_text(const config_field& field) {
  const auto rules = rules_text(field);
  return type_text(field.shape) + (rules.empty() ? "" : ", ") + rules;
}

/// The value as an integer if it is one, written 1000 or 1e3.
std::optional<json> as_integer(const json& value) {
  if (value.is_number_integer()) return value;
  if (!value.is_number_float()) return std::nullopt;
  const auto x = value.get<double>();
  // The limits themselves are left out: they are what an integer literal too large for 64 bits is rounded to.
  if (x != std::floor(x) || !(x > -0x1p63 && x < 0x1p64)) return std::nullopt;
  return x < 0 ? json(static_cast<std::int64_t>(x)) : json(static_cast<std::uint64_t>(x));
}

bool within(const json& integer, const config_shape& shape) {
  if (integer.is_number_unsigned()) return integer.get<std::uint64_t>() <= shape.most;
  const auto x = integer.get<std::int64_t>();
  return x >= shape.least && (x < 0 || static_cast<std::uint64_t>(x) <= shape.most);
}

bool is_empty(const json& value) {
  if (const auto* text = value.get_ptr<const std::string*>()) return text->empty();
  return value.is_null() || (value.is_structured() && value.empty());
}

bool keeps(const json& value, const config_bound& bound) {
  const auto x = value.is_number_unsigned()  ? static_cast<long double>(value.get<std::uint64_t>())
                 : value.is_number_integer() ? static_cast<long double>(value.get<std::int64_t>())
                                             : static_cast<long double>(value.get<double>());
  switch (bound.what) {
    case config_bound::kind::at_least:
      return x >= bound.value;
    case config_bound::kind::above:
      return x > bound.value;
    case config_bound::kind::at_most:
      return x <= bound.value;
    case config_bound::kind::below:
      return x < bound.value;
  }
  return false;
}

/// Of a value of the right type: whether it keeps the rules on scalars.
bool keeps_scalar_rules(const json& value, const config_field& field) {
  return std::all_of(field.rules.begin(), field.rules.end(), [&](const config_rule& rule) {
    if (const auto* bound = std::get_if<config_bound>(&rule)) return keeps(value, *bound);
    if (const auto* choice = std::get_if<config_choice>(&rule))
      return std::find(choice->choices.begin(), choice->choices.end(), value) != choice->choices.end();
    return true;
  });
}

bool must_not_be_empty(const config_field& field) {
  return std::any_of(field.rules.begin(), field.rules.end(),
                     [](const config_rule& rule) { return std::holds_alternative<config_not_empty>(rule); });
}

/// Reads one object and everything below it, and gathers what is wrong.
class reader {
 public:
  reader(const std::vector<config_field>& all, std::vector<std::string>& problems) : all_(all), problems_(problems) {}

  void read_object(const std::vector<config_field>& fields, const json& object, const std::string& prefix) {
    for (const auto& item : object.items()) {
      const auto is_it = [&](const config_field& field) { return field.name == item.key(); };
      if (std::none_of(fields.begin(), fields.end(), is_it))
        problems_.push_back(detail::unknown_field(all_, fields, prefix, item.key()));
    }
    for (const auto& field : fields) {
      const auto at = object.find(field.name);
      if (field.shape.what == base::section)
        read_section(field, at == object.end() ? nullptr : &*at, prefix);
      else if (at == object.end())
        check_default(field, joined(prefix, field.name));
      else
        read_leaf(field, *at, joined(prefix, field.name));
    }
  }

 private:
  void problem(const std::string& name, const std::string& found, const std::string& allowed) {
    problems_.push_back(name + ": " + found + ", needs " + allowed);
  }

  void read_section(const config_field& field, const json* value, const std::string& prefix) {
    const auto name = joined(prefix, field.name);
    if (value != nullptr && !value->is_object())
      return problem(name, "found " + found_text(*value), "object with " + detail::names_of(field.fields));
    read_object(field.fields, value != nullptr ? *value : json::object(), name);
  }

  void read_leaf(const config_field& field, const json& value, const std::string& name) {
    if (auto checked = check(field, value, name, "found ")) field.set(*checked);
  }

  void check_default(const config_field& field, const std::string& name) {
    check(field, field.get(), name, "missing, and its default is ");
  }

  /// The value in the form that `set` takes, or nothing and a problem more.
  std::optional<json> check(const config_field& field, const json& value, const std::string& name, const char* how) {
    if (field.shape.optional && value.is_null()) {
      if (!must_not_be_empty(field)) return value;
      problem(name, how + found_text(value), allowed_text(field));
      return std::nullopt;
    }
    if ((field.shape.list && !value.is_array()) || (must_not_be_empty(field) && is_empty(value))) {
      problem(name, how + found_text(value), allowed_text(field));
      return std::nullopt;
    }
    if (!field.shape.list) return check_scalar(field, value, name, how);
    auto list = json::array();
    for (std::size_t i = 0; i < value.size(); ++i)
      if (auto element = check_scalar(field, value[i], name + "[" + std::to_string(i) + "]", how))
        list.push_back(std::move(*element));
    if (list.size() != value.size()) return std::nullopt;
    return list;
  }

  std::optional<json> check_scalar(const config_field& field, const json& value, const std::string& name,
                                   const char* how) {
    auto allowed = allowed_text(field);
    auto typed = of_type(field.shape, value, allowed);
    if (typed && keeps_scalar_rules(*typed, field)) return typed;
    problem(name, how + found_text(value), allowed);
    return std::nullopt;
  }

  /// The value if it is of the type; for numbers out of the type's own range `allowed` becomes that range.
  static std::optional<json> of_type(const config_shape& shape, const json& value, std::string& allowed) {
    auto given = [&](bool fits) { return fits ? std::optional<json>(value) : std::nullopt; };
    switch (shape.what) {
      case base::boolean:
        return given(value.is_boolean());
      case base::string: {
        // The system ends a path at a NUL: another file than the one named would be opened.
        const bool whole = value.is_string() && value.get_ref<const std::string&>().find('\0') == std::string::npos;
        if (value.is_string() && !whole) allowed += " (without NUL characters)";
        return given(whole);
      }
      case base::any:
        return value;
      case base::section:
        return std::nullopt;
      case base::integer: {
        auto integer = as_integer(value);
        if (!integer || within(*integer, shape)) return integer;
        allowed += " (integers from " + std::to_string(shape.least) + " to " + std::to_string(shape.most) + ")";
        return std::nullopt;
      }
      case base::number: {
        if (!value.is_number()) return std::nullopt;
        const auto most = static_cast<double>(std::numeric_limits<float>::max());
        if (!shape.single || std::abs(value.get<double>()) <= most) return value;
        allowed += " (numbers from " + json(-most).dump() + " to " + json(most).dump() + ")";
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  const std::vector<config_field>& all_;
  std::vector<std::string>& problems_;
};

struct table_row {
  std::array<std::string, 4> cells;  // name, type, default, allowed
  std::string description;
};

void add_rows(const std::vector<config_field>& fields, const std::string& prefix, std::vector<table_row>& rows) {
  for (const auto& field : fields) {
    const auto name = joined(prefix, field.name);
    const bool section = field.shape.what == base::section;
    rows.push_back(
        {{name, type_text(field.shape), section ? "" : field.get().dump(), rules_text(field)}, field.description});
    add_rows(field.fields, name, rows);
  }
}

}  // namespace

namespace detail {

result<void> read_fields(const std::vector<config_field>& fields, const json& root, const std::string& origin) {
  if (!root.is_object())
    return fail(errc::invalid_config,
                origin + ": found " + found_text(root) + ", needs object with " + names_of(fields));
  std::vector<std::string> problems;
  reader(fields, problems).read_object(fields, root, "");
  if (problems.empty()) return {};
  auto text = origin + ": " + std::to_string(problems.size()) + (problems.size() == 1 ? " problem" : " problems");
  for (const auto& line : problems) text += "\n  " + line;
  return fail(errc::invalid_config, std::move(text));
}

nlohmann::ordered_json write_fields(const std::vector<config_field>& fields) {
  auto object = nlohmann::ordered_json::object();
  for (const auto& field : fields) {
    if (field.shape.what == base::section)
      object[field.name] = write_fields(field.fields);
    else
      object[field.name] = field.get();
  }
  return object;
}

std::string document_fields(const std::vector<config_field>& fields) {
  std::vector<table_row> rows{{{"field", "type", "default", "allowed"}, "meaning"}};
  add_rows(fields, "", rows);
  std::array<std::size_t, 4> widths{};
  for (const auto& row : rows)
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row.cells[i].size());
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i)
      text += row.cells[i] + std::string(widths[i] - row.cells[i].size() + 2, ' ');
    text += row.description + "\n";
  }
  return text;
}

void add_field(std::vector<config_field>& fields, config_field field) {
  if (field.name.empty() || field.name.find_first_of(".=") != std::string::npos)
    throw std::logic_error("a config field cannot be named \"" + field.name + "\"");
  for (const auto& other : fields)
    if (other.name == field.name) throw std::logic_error("two config fields are named \"" + field.name + "\"");
  fields.push_back(std::move(field));
}

json json_number(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double wide = 0;
  std::from_chars(text.data(), end, wide);
  return static_cast<float>(wide) == value ? wide : static_cast<double>(value);
}

}  // namespace detail

result<void> apply_override(json& root, const std::string& assignment) {
  auto refuse = [&](const std::string& why) { return fail(errc::invalid_argument, "\"" + assignment + "\": " + why); };
  const auto equals = assignment.find('=');
  if (equals == std::string::npos) return refuse("an override is written name=value, such as trainer.lr=1e-4");
  const auto key = assignment.substr(0, equals);
  std::vector<std::string> path{""};
  for (char c : key) {
    if (c == '.')
      path.emplace_back();
    else
      path.back() += c;
  }
  if (std::any_of(path.begin(), path.end(), [](const auto& part) { return part.empty(); }))
    return refuse("the name before '=' is empty or has an empty part");
  std::string so_far = "the config";
  const json* existing = &root;
  for (const auto& part : path) {
    if (existing->is_null()) break;
    if (!existing->is_object()) return refuse(so_far + " is " + found_text(*existing) + " and has no fields");
    so_far = existing == &root ? part : joined(so_far, part);
    const auto at = existing->find(part);
    if (at == existing->end()) break;
    existing = &*at;
  }
  const auto text = assignment.substr(equals + 1);
  auto value = json::parse(text, nullptr, false);
  json* place = &root;
  for (const auto& part : path) place = &(*place)[part];
  *place = value.is_discarded() ? json(text) : std::move(value);
  return {};
}

}  // namespace weir
