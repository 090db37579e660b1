#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/entry_plan.h"
#include "core/result.h"
#include "fs/part.h"
#include "ipc/protocol.h"

namespace wcache {

/// One group as the mount shows it: the parts of its ranks merged into one directory. Content never changes
/// after `make`; only the state does, atomically. Safe for concurrent use. Whoever serves from it keeps it
/// alive: the tree while it is shown, an open file or directory after that. That the kernel still caches an
/// inode does not.
///
/// Every entry owns a range of inode numbers: kFixed ones (see Slot), one for each directory and file, then
/// one for each tensor. A tensor's is computed from its row, so that attaching costs nothing per tensor.
class Entry {
 public:
  /// Offsets in the range of the nodes that every entry has.
  enum Slot : std::uint64_t {
    kRoot,
    kByNameLink,
    kMeta,  ///< .wcache
    kFingerprintJson,
    kManifest,
    kManifestJson,
    kStatusJson,
    kTensors,  ///< .wcache/tensors
    kFixed,
  };

  struct Child {
    std::string name;  ///< one component
    bool is_directory = false;
    std::uint32_t index = 0;  ///< into directories() or files()
  };
  struct Directory {
    std::uint32_t parent = 0;
    std::vector<Child> children;  ///< sorted by name
  };
  struct File {
    std::uint32_t parent = 0;  ///< directory
    std::uint32_t part = 0;
    std::uint32_t row = 0;  ///< file row of that part's manifest
  };
  struct TensorRef {
    std::uint32_t part = 0;
    std::uint64_t row = 0;
  };

  /// `parts` are of one role and fingerprint, one of each rank, in order of rank. A file that several have is
  /// shown once, as the first one's. corrupt: a file name that is no path below a directory, is taken twice,
  /// or lies in `.wcache`; mismatch: parts of different entries, or files of one name that differ.
  static Result<std::shared_ptr<Entry>> make(std::vector<std::shared_ptr<const Part>> parts, double since);

  Role role() const { return role_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  const std::string& directory_name() const { return directory_name_; }  ///< 32 hex digits
  /// In the tree: "target/<fingerprint>".
  std::string path() const { return std::string(to_string(role_)) + "/" + directory_name_; }
  const std::string& name() const { return name_; }
  /// Whether name() can be a link in by-name/.
  bool has_link() const;
  double since() const { return since_; }              ///< Unix time of its appearance
  std::int64_t mtime_ns() const { return mtime_ns_; }  ///< the newest of its files

  /// The lowest rank's manifest: what all ranks have in common.
  const ManifestView& manifest() const { return parts_.front()->manifest(); }
  const std::vector<std::shared_ptr<const Part>>& parts() const { return parts_; }
  const std::vector<Directory>& directories() const { return directories_; }  ///< [0] is the entry's own
  const std::vector<File>& files() const { return files_; }
  const Part& part_of(const File& file) const { return *parts_[file.part]; }
  ManifestView::File row_of(const File& file) const { return *part_of(file).manifest().file(file.row); }
  std::uint64_t nbytes() const { return nbytes_; }  ///< of files()

  /// Tensors of all parts that show weights of their own, numbered through: first part 0's rows, then part
  /// 1's, ...
  std::uint64_t tensor_count() const { return tensor_starts_.back(); }
  TensorRef tensor_ref(std::uint64_t number) const;
  std::optional<ManifestView::Tensor> tensor(std::uint64_t number) const;
  /// The first rank's where several have the name.
  std::optional<std::uint64_t> find_tensor(std::string_view name) const;

  State state() const { return state_.load(std::memory_order_relaxed); }
  void set_state(State state) { state_.store(state, std::memory_order_relaxed); }

  /// Inode numbers, given once by the tree that publishes the entry.
  std::uint64_t base() const { return base_; }
  std::uint64_t inode_count() const { return first_tensor() + tensor_count(); }
  std::uint64_t directory_inode(std::uint32_t index) const {
    return base_ + (index == 0 ? kRoot : kFixed + index - 1);
  }
  std::uint64_t file_inode(std::uint32_t index) const { return base_ + first_file() + index; }
  std::uint64_t tensor_inode(std::uint64_t number) const { return base_ + first_tensor() + number; }
  /// Offsets in the range: directories below the entry's own begin at kFixed.
  std::uint64_t first_file() const { return kFixed + directories_.size() - 1; }
  std::uint64_t first_tensor() const { return first_file() + files_.size(); }
  std::uint64_t sequence() const { return sequence_; }

  std::shared_ptr<const std::string> fingerprint_json() const { return fingerprint_json_; }
  /// Made when asked for, and shared by who has it open: it can be large. Only its size is kept.
  std::shared_ptr<const std::string> manifest_json() const;
  std::uint64_t manifest_json_nbytes() const;

 private:
  friend class Tree;
  Entry() = default;
  Status add_part(std::uint32_t part);
  Result<bool> add_file(std::uint32_t part, std::uint32_t row, const ManifestView::File& file);
  Result<std::uint32_t> directory_at(std::string_view path);
  Status add_child(std::uint32_t directory, Child child, std::string_view path);
  void sort_children();

  Role role_ = Role::target;
  Fingerprint fingerprint_;
  std::string directory_name_, name_;
  double since_ = 0;
  std::int64_t mtime_ns_ = 0;
  std::uint64_t nbytes_ = 0;
  std::vector<std::shared_ptr<const Part>> parts_;
  std::vector<Directory> directories_;
  std::vector<File> files_;
  std::vector<std::uint64_t> tensor_starts_;  // of each part, and the end
  std::uint64_t base_ = 0;
  std::uint64_t sequence_ = 0;
  std::atomic<State> state_ = State::ready;

  std::shared_ptr<const std::string> fingerprint_json_;
  mutable std::mutex text_mutex_;  // guards what follows
  mutable std::weak_ptr<const std::string> manifest_json_;
  mutable std::optional<std::uint64_t> manifest_json_nbytes_;
};

/// Whether `name` can be one component of a path.
bool is_component(std::string_view name);

}  // namespace wcache
