#include "core/entry_plan.h"

#include <array>
#include <utility>

namespace wcache {
namespace {

constexpr std::array<std::pair<Role, std::string_view>, 2> kRoles{
    {{Role::target, "target"}, {Role::draft0, "draft0"}}};

constexpr std::array<std::pair<Layout, std::string_view>, 4> kLayouts{{{Layout::checkpoint, "checkpoint"},
                                                                       {Layout::mtp, "mtp"},
                                                                       {Layout::sharded, "sharded"},
                                                                       {Layout::published, "published"}}};

EntryPlan part_of(const EntryPlan& plan, bool weights) {
  EntryPlan part;
  part.role = plan.role;
  part.layout = plan.layout;
  part.sources = plan.sources;
  for (const ImagePlan& image : plan.images) {
    if (is_weights(image.kind) != weights) continue;
    part.images.push_back(image);
    part.images.back().tensors.clear();
  }
  return part;
}

}  // namespace

std::string_view to_string(Role role) {
  for (const auto& [value, word] : kRoles)
    if (value == role) return word;
  return "target";
}

Result<Role> role_from_string(std::string_view word) {
  for (const auto& [value, name] : kRoles)
    if (name == word) return value;
  return fail(Reason::invalid, "there is no role '" + std::string(word) + "'", "roles are target and draft0", "role");
}

std::string_view to_string(Layout layout) {
  for (const auto& [value, word] : kLayouts)
    if (value == layout) return word;
  return "checkpoint";
}

Result<Layout> layout_from_string(std::string_view word) {
  for (const auto& [value, name] : kLayouts)
    if (name == word) return value;
  return fail(Reason::invalid, "there is no layout '" + std::string(word) + "'");
}

std::uint64_t EntryPlan::nbytes() const {
  std::uint64_t sum = 0;
  for (const ImagePlan& image : images) sum += image.nbytes;
  return sum;
}

std::uint64_t EntryPlan::weight_nbytes() const {
  std::uint64_t sum = 0;
  for (const ImagePlan& image : images)
    if (is_weights(image.kind)) sum += image.nbytes;
  return sum;
}

std::uint64_t EntryPlan::tensor_count() const {
  std::uint64_t sum = 0;
  for (const ImagePlan& image : images) sum += image.tensors.size();
  return sum;
}

EntryPlan weights_of(const EntryPlan& plan) { return part_of(plan, true); }

EntryPlan without_weights(const EntryPlan& plan) { return part_of(plan, false); }

}  // namespace wcache
