#pragma once
// Reading a JSON file whose form is fixed, so that what is wrong in it is told by file and field.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace weir {

/// A value and the way to it, such as "golden.json: policy[3].inputs.mask". Whoever reads a deep file asks it hundreds
/// of questions, so what is missing or of another type is an exception, to be caught once, where the file is read:
/// `mismatch`, whose text says where, what was found and what is needed. Refers to the JSON, which must outlive it.
class json_view {
 public:
  struct mismatch : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  /// The file's whole content.
  json_view(const nlohmann::json& content, std::string file) : value_(&content), place_(std::move(file)), top_(true) {}

  /// Of an object or a list.
  json_view at(const std::string& key) const;
  json_view at(std::size_t index) const;
  bool has(const std::string& key) const { return value_->is_object() && value_->contains(key); }
  std::vector<std::pair<std::string, json_view>> items() const;  ///< of an object
  std::size_t size() const;                                      ///< of a list

  double number() const;
  std::int64_t integer() const;
  std::uint64_t natural() const;
  bool flag() const;
  const std::string& text() const;

  const nlohmann::json& json() const noexcept { return *value_; }

  /// Throws the mismatch of this place: "what was found, needs ...".
  [[noreturn]] void refuse(const std::string& needed) const;

 private:
  json_view(const nlohmann::json& value, std::string place, bool top)
      : value_(&value), place_(std::move(place)), top_(top) {}
  const nlohmann::json* value_;
  std::string place_;
  bool top_;
};

}  // namespace weir
