#pragma once

namespace wcache::bench {

/// The only file of the file system that does nothing.
inline constexpr const char* kNullFile = "file";
/// Its only attribute. wcachefs has one of this name and of as many bytes on every weight file.
inline constexpr const char* kAttribute = "user.wcache.digest";
inline constexpr const char* kAttributeValue = "00000000000000000000000000000000";

}  // namespace wcache::bench
