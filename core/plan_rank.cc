#include <set>
#include <utility>

#include "core/checkpoint/shard_name.h"
#include "core/entry_plan.h"

namespace wcache {
namespace {

std::set<std::uint32_t> ranks_in(const Checkpoint& checkpoint) {
  std::set<std::uint32_t> ranks;
  for (const SourceFile& file : checkpoint.files)
    if (const auto rank = shard_rank(file.name)) ranks.insert(*rank);
  return ranks;
}

}  // namespace

std::uint32_t shard_ranks(const Checkpoint& checkpoint) {
  const std::set<std::uint32_t> ranks = ranks_in(checkpoint);
  return ranks.empty() ? 0 : *ranks.rbegin() + 1;
}

Result<EntryPlan> plan_rank(Checkpoint checkpoint, Role role, std::uint32_t rank, std::uint32_t tp_size) {
  const std::set<std::uint32_t> ranks = ranks_in(checkpoint);
  const std::uint32_t sharded_for = shard_ranks(checkpoint);
  if (sharded_for != tp_size || rank >= tp_size)
    return fail(Reason::invalid,
                checkpoint.root.string() + " is sharded for " + std::to_string(sharded_for) + " ranks, not " +
                    std::to_string(tp_size),
                "use --tensor-parallel-size " + std::to_string(sharded_for), "--tensor-parallel-size");
  if (ranks.size() != sharded_for)
    for (std::uint32_t r = 0; r < sharded_for; ++r)
      if (!ranks.contains(r))
        return fail(Reason::corrupt,
                    checkpoint.root.string() + " is sharded for " + std::to_string(sharded_for) +
                        " ranks, but has no file of rank " + std::to_string(r),
                    "the download is incomplete: download the missing files");
  std::erase_if(checkpoint.files, [&](const SourceFile& file) {
    const auto owner = shard_rank(file.name);
    return owner ? *owner != rank : is_weights(file.kind);
  });
  for (SourceFile& file : checkpoint.files)  // ranks share names; each is the owner of its own
    for (TensorInfo& tensor : file.tensors) tensor.shadowed = false;
  EntryPlan plan = plan_checkpoint(std::move(checkpoint), role);
  plan.layout = Layout::sharded;
  plan.rank = rank;
  plan.tp_size = tp_size;
  return plan;
}

}  // namespace wcache
