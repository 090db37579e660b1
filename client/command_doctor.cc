#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "client/commands.h"
#include "client/machine_checks.h"
#include "core/format.h"
#include "core/version.h"
#include "daemon/supervisor/device_probe.h"

namespace wcache {
namespace {

using Grade = MachineCheck::Grade;

std::string json_of(const std::vector<MachineCheck>& checks, bool serves) {
  nlohmann::ordered_json object = {{"version", version()}, {"serves", serves}};
  object["checks"] = nlohmann::ordered_json::array();
  for (const MachineCheck& check : checks) {
    nlohmann::ordered_json row = {
        {"name", check.name}, {"grade", to_string(check.grade)}, {"found", check.found}};
    if (!check.advice.empty()) row["advice"] = check.advice;
    object["checks"].push_back(std::move(row));
  }
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string text_of(const std::vector<MachineCheck>& checks) {
  std::size_t width = 0;
  for (const MachineCheck& check : checks) width = std::max(width, check.name.size());
  std::string out;
  for (const MachineCheck& check : checks) {
    std::string grade(to_string(check.grade));
    grade.resize(9, ' ');
    std::string name = check.name;
    name.resize(width + 2, ' ');
    out += grade + name + printable(check.found) + "\n";
    if (!check.advice.empty())
      out += std::string(9 + width + 2, ' ') + "-> " + printable(check.advice) + "\n";
  }
  return out;
}

Result<int> run_doctor(const CommandContext& context, bool json) {
  const FuseProbe fuse = probe_fuse();
  std::vector<MachineCheck> checks = {check_kernel(), check_mount(fuse), check_passthrough(fuse),
                                      check_memory_kind(), check_io_uring()};
  const DeviceReport gpus = machine_probe().run();
  for (MachineCheck& check : check_gpus(gpus)) checks.push_back(std::move(check));
  checks.push_back(check_free_memory(machine_memory_limits()));
  checks.push_back(check_resource_limits());
  checks.push_back(
      check_run_dir(context.run_dir(), gpus.devices.empty() ? "HOST-0" : gpus.devices.front().uuid));
  const bool serves = std::none_of(checks.begin(), checks.end(),
                                   [](const MachineCheck& check) { return check.grade == Grade::fatal; });
  print(context.out, json ? json_of(checks, serves) : text_of(checks));
  return serves ? 0 : 1;
}

}  // namespace

Command add_doctor(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      add_command(app, context, "doctor",
                  "Tells what this machine offers, by trying it out, and what to do about what is missing. "
                  "The exit code is 1 only where serving is impossible.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON for programs.");
  return {command, [&context, json] { return run_doctor(context, *json); }, [json] { return *json; }};
}

}  // namespace wcache
