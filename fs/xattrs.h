#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "fs/node.h"

namespace wcache {

/// What the attributes of an entry say beyond the manifest.
struct XattrContext {
  /// Processes with files of the entry open; asked for only where the attribute is.
  std::function<std::size_t(const Entry& entry)> holders = [](const Entry&) { return std::size_t{0}; };
  /// The draft of a target, or the target of a draft; nullptr when it has none.
  std::function<std::shared_ptr<Entry>(const Entry& entry)> partner = [](const Entry&) { return nullptr; };
  std::string mount = {};           ///< where the tree is
  std::string control_socket = {};  ///< wcachefs's own
  bool owner = false;               ///< whether the mounter asks, who alone may have handles
};

/// Whether `name` can exist at all. Everything else (security.*, system.*, which programs ask for at every
/// listing) is missing without a look at the node.
bool is_own_xattr(std::string_view name);

/// Whether the value asks other processes: not for a thread that serves requests.
bool is_slow_xattr(const Node& node, std::string_view name);

/// The value of `name` ("user.wcache.…") on `node`: one line without a newline, or a CUipcMemHandle.
/// Otherwise an errno: ENODATA where the node has no such attribute, EACCES for a handle that is not the
/// asker's to have.
tl::expected<std::string, int> xattr_value(const Node& node, std::string_view name,
                                           const XattrContext& context);

/// The names that have a value on `node` for who asks, in the order of the documentation. Asks nobody for
/// holders.
std::vector<std::string> xattr_names(const Node& node, const XattrContext& context);

}  // namespace wcache
