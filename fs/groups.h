#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "fs/entry.h"
#include "fs/entry_holders.h"
#include "fs/notifier.h"
#include "fs/open_files.h"
#include "fs/tree.h"
#include "ipc/protocol.h"

namespace wcache {

/// What the daemons have handed over, and what of it is shown. The parts of a group's ranks become one entry
/// when all of them are there; an entry stays, orphaned, when a daemon goes without a word. Safe for
/// concurrent use.
class Groups {
 public:
  using Link = std::uint64_t;  ///< one connection to a daemon; never reused

  /// Tree, files and notifier are borrowed. `mappings`: who maps an entry's memory; asked for orphans only,
  /// whose daemons cannot tell any more. `now`: Unix time, seconds.
  Groups(Tree& tree, OpenFiles& open_files, Notifier& notifier, Mappings mappings,
         std::function<double()> now);

  /// A daemon's part has come. The same rank's earlier part is replaced, whether its daemon lives or not.
  Status join(Link link, std::shared_ptr<const Part> part);
  /// A daemon's connection has ended. What it served without having withdrawn it is orphaned: files in host
  /// memory are served on, reads of files on a device fail.
  void lose(Link link);
  /// A daemon wants its entry gone. Refused while files of it are open, unless forced. When it is granted,
  /// the kernel has forgotten the directory. Waits, a second or so at most.
  WithdrawReply withdraw(Link link, bool force);
  std::vector<Holder> holders(Link link);

  /// Drops an orphaned entry: not_found when there is none such, busy while files of it are open or mapped.
  /// Waits, a second or so at most.
  Status evict_orphan(Role role, const Fingerprint& fingerprint);

  /// What is left of a rank whose daemon is gone, and a lease that holds the entry as an open file does.
  struct Orphan {
    std::shared_ptr<const Part> part;
    std::shared_ptr<const void> lease;
  };
  /// not_found: the rank is none of an orphaned entry's, or its daemon serves it; not_running: its memory
  /// went with the daemon. `holder.since` is filled in.
  Result<Orphan> hold_orphan(Role role, const Fingerprint& fingerprint, std::uint32_t rank, Holder holder);

  /// Ranks whose daemons are gone while their memory is still shown.
  std::vector<RankStatus> orphans();

 private:
  struct Member {
    Link link = 0;
    bool alive = true;
    double since = 0;  // of `alive`'s value
    std::shared_ptr<const Part> part;
  };
  struct Group {
    std::map<std::uint32_t, Member> members;  // by rank
    std::shared_ptr<Entry> shown;
  };
  using Key = std::pair<Role, Fingerprint>;

  std::map<Key, Group>::iterator find_link(Link link);
  void wait_for_releases(const Entry& entry) const;
  Status drop_orphan(const Entry& entry, const std::vector<Holder>& holders);
  std::shared_ptr<Entry> shown_by(Link link);
  WithdrawReply withdraw_now(Link link, bool force);
  static Member* member_of(Group& group, Link link);
  static void update_state(Group& group);
  Status show(Group& group);
  void hide(Group& group);
  void tell(std::vector<TreeChange> changes, const Entry* gone);

  Tree& tree_;
  OpenFiles& open_files_;
  Notifier& notifier_;
  Mappings mappings_;
  std::function<double()> now_;
  std::mutex mutex_;  // guards groups_; held over the tree's and the notifier's own, which are leaves
  std::map<Key, Group> groups_;
};

}  // namespace wcache
