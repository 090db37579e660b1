#include "client/status_text.h"

#include <algorithm>
#include <vector>

#include "core/format.h"

namespace wcache {
namespace {

using Row = std::vector<std::string>;

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Columns padded to their widest cell; `notes[i]` goes below row i, indented.
std::string table(const std::vector<Row>& rows, const std::vector<std::vector<std::string>>& notes = {}) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      out += rows[r][i];
      if (i + 1 < rows[r].size()) out.append(widths[i] - width_of(rows[r][i]) + 2, ' ');
    }
    out += "\n";
    if (r >= notes.size()) continue;
    for (const std::string& note : notes[r]) out += "  " + note + "\n";
  }
  return out;
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : printable(text);
}

std::string state_of(const GroupStatus& group) {
  std::string text(to_string(group.state));
  if (group.state == State::failed && !group.reason.empty()) text += " (" + group.reason + ")";
  return text;
}

std::string size_of(const GroupStatus& group) {
  if (group.nbytes == 0) return "-";
  if (group.state != State::filling) return human_size(group.nbytes);
  const double part = static_cast<double>(group.filled()) / static_cast<double>(group.nbytes);
  return human_size(group.filled()) + " of " + human_size(group.nbytes) + " (" +
         std::to_string(static_cast<int>(100 * part)) + " %)" +
         (group.rate() > 0 ? ", " + human_rate(group.rate()) : "");
}

std::string age_of(double since, double now) {
  return since > 0 ? human_seconds(now - since) : "-";
}

std::string holders_of(const GroupStatus& group) {
  return std::to_string(group.holders.size()) + (group.holders_complete ? "" : "+?");
}

void add(std::string& text, const std::string& part) {
  if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
}

std::string rank_note(const GroupStatus& group, const RankStatus& rank) {
  std::string text = "rank " + std::to_string(rank.rank);
  const bool alone = rank.tier == "host" && (group.layout == "checkpoint" || group.layout == "mtp");
  add(text, alone ? "for every rank" : "");
  add(text, rank.pid == 0 ? "" : "pid " + std::to_string(rank.pid));
  add(text, rank.device_uuid);
  add(text, rank.tier);
  add(text, rank.tier == "cuda" ? rank.ipc_kind : "");
  add(text, rank.pages.empty() ? "" : rank.pages + " pages");
  add(text, rank.fill_path.empty() ? "" : "filled by " + rank.fill_path);
  const bool serves = rank.state == State::ready || rank.state == State::orphaned;
  add(text, serves && rank.device_nbytes > 0 ? human_size(rank.device_nbytes) + " on the device" : "");
  add(text, serves && rank.context ? "a context on the device" : "");
  const char* mortal =
      rank.tier == "cuda" ? "mappings do not outlive the daemon" : "mappings do not outlive the mount";
  add(text, serves && !rank.survives ? mortal : "");
  return text;
}

std::vector<std::string> notes_of(const GroupStatus& group, double now) {
  std::vector<std::string> notes;
  if (!group.path.empty()) notes.push_back("at " + printable(group.path));
  if (!group.source.empty()) notes.push_back("from " + printable(group.source));
  if (!group.draft.empty()) notes.push_back("its draft is at " + printable(group.draft));
  if (!group.target.empty()) notes.push_back("draft for " + printable(group.target));
  if (!group.message.empty()) notes.push_back(printable(group.message));
  if (!group.hint.empty()) notes.push_back("hint: " + printable(group.hint));
  for (const RankStatus& rank : group.ranks) notes.push_back(rank_note(group, rank));
  for (const Holder& holder : group.holders)
    notes.push_back("held by pid " + std::to_string(holder.pid) + " (" + printable(holder.command) + ")" +
                    (holder.since > 0 ? " for " + human_seconds(now - holder.since) : ""));
  if (!group.holders_complete)
    notes.push_back("some processes' mappings could not be looked at: there may be more holders");
  return notes;
}

std::string mount_line(const NodeStatus& node) {
  if (!node.mount) return "not mounted\n";
  const MountStatus& mount = *node.mount;
  return "mounted at " + printable(mount.path) + " (wcachefs pid " + std::to_string(mount.pid) + ", " +
         (mount.passthrough ? "passthrough" : "no passthrough: " + printable(mount.reason)) + ")\n";
}

}  // namespace

std::string status_text(const NodeStatus& node, double now) {
  std::string out = "run directory " + node.run_dir + ", " + mount_line(node);
  for (const std::string& socket : node.silent) out += "no answer from " + socket + "\n";
  if (node.groups.empty()) return out;
  std::vector<Row> rows = {{"ROLE", "NAME", "STATE", "SIZE", "TENSORS", "HOLDERS", "AGE", "FINGERPRINT"}};
  std::vector<std::vector<std::string>> notes = {{}};
  for (const GroupStatus& group : node.groups) {
    rows.push_back({group.role, or_dash(group.name), state_of(group), size_of(group),
                    group.nbytes == 0 ? "-" : std::to_string(group.tensors), holders_of(group),
                    age_of(group.since, now), or_dash(group.fingerprint)});
    notes.push_back(notes_of(group, now));
  }
  return out + "\n" + table(rows, notes);
}

std::string list_text(const NodeStatus& node) {
  std::vector<Row> rows;
  for (const GroupStatus& group : node.groups)
    rows.push_back(
        {group.role, or_dash(group.fingerprint), state_of(group), size_of(group), or_dash(group.name)});
  return table(rows);
}

}  // namespace wcache
