#pragma once
// A model's parameters as versions hold them.

#include <cstddef>
#include <memory>
#include <span>

#include "weir/policy/causal_lm.hpp"
#include "weir/weights/layout_plan.hpp"

namespace weir {

/// Writes models of one layout as a manifest says: in another type, some of the tensors.
class published_form {
 public:
  /// `layout` null: as the model has them. Error: invalid_data, names the tensor that does not fit.
  static result<published_form> make(const manifest& model, const manifest* layout);

  std::uint64_t bytes() const noexcept { return plan_.target().bytes; }

  /// `into` has bytes() bytes.
  void write(const causal_lm& model, std::span<std::byte> into) const;

 private:
  explicit published_form(layout_plan plan) : plan_(std::move(plan)) {}
  layout_plan plan_;
};

}  // namespace weir
