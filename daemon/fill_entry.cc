#include "daemon/fill_entry.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace wcache {
namespace {

/// Of things that are one an image, those of the weights or those of the others.
template <class T>
std::vector<T> part_of(const EntryPlan& plan, std::span<const T> all, bool weights) {
  std::vector<T> part;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (is_weights(plan.images[i].kind) == weights) part.push_back(all[i]);
  return part;
}

FillOptions options_for(const EntryPlan& plan, const FillOptions& options, bool weights) {
  FillOptions part = options;
  part.remembered = part_of<std::optional<Digest>>(plan, options.remembered, weights);
  return part;
}

/// What was filled before counts as filled.
ProgressCallback progress_after(std::uint64_t before, std::uint64_t total, const ProgressCallback& progress) {
  return [=](const FillProgress& part) {
    if (progress) progress({before + part.filled, total, part.rate});
  };
}

FillReport joined(const EntryPlan& plan, FillReport weights, FillReport others) {
  FillReport report;
  auto from_weights = weights.digests.begin();
  auto from_others = others.digests.begin();
  for (const ImagePlan& image : plan.images)
    report.digests.push_back(std::move(*(is_weights(image.kind) ? from_weights++ : from_others++)));
  report.path = std::max(weights.path, others.path);
  report.note = weights.note.empty() ? others.note : weights.note;
  report.seconds = weights.seconds + others.seconds;
  report.nbytes = weights.nbytes + others.nbytes;
  report.read_nbytes = weights.read_nbytes + others.read_nbytes;
  return report;
}

}  // namespace

Result<FillReport> fill_entry(const EntryPlan& plan, std::span<const std::span<std::byte>> images,
                              FillSink* device, Disk& disk, const FillOptions& options,
                              const ProgressCallback& progress, std::stop_token stop) {
  if (device == nullptr) return fill(plan, images, disk, options, progress, std::move(stop));
  const EntryPlan rest = without_weights(plan);
  const auto spans = part_of<std::span<std::byte>>(plan, images, false);
  auto others = fill(rest, spans, disk, options_for(plan, options, false),
                     progress_after(0, plan.nbytes(), progress), stop);
  if (!others) return others;
  auto weights = fill(*device, disk, options_for(plan, options, true),
                      progress_after(rest.nbytes(), plan.nbytes(), progress), std::move(stop));
  if (!weights) return weights;
  return joined(plan, std::move(*weights), std::move(*others));
}

}  // namespace wcache
