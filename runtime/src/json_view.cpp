#include "weir/runtime/json_view.hpp"

#include <limits>

namespace weir {

namespace {

/// What stands there, cut to a length that a message has room for.
std::string found(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  auto text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

}  // namespace

void json_view::refuse(const std::string& needed) const {
  throw mismatch(place_ + (top_ ? ": holds " : " is ") + found(*value_) + ", needs " + needed);
}

json_view json_view::at(const std::string& key) const {
  if (!value_->is_object()) refuse("an object with " + key);
  const auto here = value_->find(key);
  const auto place = place_ + (top_ ? ": " : ".") + key;
  if (here == value_->end()) throw mismatch(place + " is missing");
  return {*here, place, false};
}

json_view json_view::at(std::size_t index) const {
  const auto place = place_ + (top_ ? ": " : "") + "[" + std::to_string(index) + "]";
  if (index >= size()) throw mismatch(place + " is missing");
  return {(*value_)[index], place, false};
}

std::vector<std::pair<std::string, json_view>> json_view::items() const {
  if (!value_->is_object()) refuse("an object");
  std::vector<std::pair<std::string, json_view>> all;
  for (const auto& item : value_->items()) all.emplace_back(item.key(), at(item.key()));
  return all;
}

std::size_t json_view::size() const {
  if (!value_->is_array()) refuse("a list");
  return value_->size();
}

double json_view::number() const {
  if (!value_->is_number()) refuse("a number");
  return value_->get<double>();
}

std::int64_t json_view::integer() const {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits =
      value_->is_number_integer() && (!value_->is_number_unsigned() || value_->get<std::uint64_t>() <= most);
  if (!fits) refuse("an integer");
  return value_->get<std::int64_t>();
}

std::uint64_t json_view::natural() const {
  if (!value_->is_number_unsigned()) refuse("an integer of at least 0");
  return value_->get<std::uint64_t>();
}

bool json_view::flag() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

const std::string& json_view::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get_ref<const std::string&>();
}

}  // namespace weir
