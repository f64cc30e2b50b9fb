#include "weir/trainer/published.hpp"

#include "weir/policy/torch.hpp"

namespace weir {

result<published_form> published_form::make(const manifest& model, const manifest* layout) {
  auto plan = layout_plan::make(model, layout == nullptr ? model : *layout, layout_fit::subset);
  if (!plan) return fail(plan.error());
  return published_form(std::move(*plan));
}

void published_form::write(const causal_lm& model, std::span<std::byte> into) const {
  if (plan_.as_a_whole()) return model.copy_to(into, plan_.target().tensors.front().type);
  const auto host = model.flat().detach().to(at::kCPU);  // itself, if it is there
  plan_.apply({static_cast<const std::byte*>(host.data_ptr()), plan_.published_bytes()}, into);
}

}  // namespace weir
