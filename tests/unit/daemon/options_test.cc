#include "daemon/options.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace wcache {
namespace {

Result<std::variant<DaemonOptions, HelpText, ListDevices>> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "wcached");
  return parse_daemon_options(static_cast<int>(words.size()), words.data());
}

TEST(DaemonOptions, TakesWhatALauncherGives) {
  const auto parsed =
      parse({"--model", "/m", "--role", "draft0", "--rank", "3", "--name", "N", "--run-dir", "/r", "--device",
             "host", "--launcher-fd", "7", "--memory-limit", "2G", "--log-level", "debug"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  const auto& options = std::get<DaemonOptions>(*parsed);
  EXPECT_EQ(options.group.route.target, "/m");
  EXPECT_EQ(options.group.role, Role::draft0);
  EXPECT_EQ(options.rank, 3u);
  EXPECT_EQ(options.name, "N");
  EXPECT_EQ(options.run_dir, "/r");
  EXPECT_EQ(options.launcher_fd, 7);
  EXPECT_EQ(options.memory_limit, std::uint64_t{2} << 30);
  EXPECT_EQ(options.log_level, spdlog::level::debug);
}

TEST(DaemonOptions, NamesADeviceByItsWholeUuid) {
  constexpr const char* kUuid = "GPU-01234567-89ab-cdef-0123-456789abcdef";
  const auto host = std::get<DaemonOptions>(*parse({"--model", "/m", "--rank", "2"}));
  EXPECT_EQ(host.device_uuid, "");
  EXPECT_EQ(host.device(), "HOST-2");
  EXPECT_EQ(host.ipc, std::nullopt);
  EXPECT_EQ(host.slab_nbytes, std::uint64_t{8} << 30);
  const std::string device = "cuda:" + std::string(kUuid);
  const auto cuda = std::get<DaemonOptions>(
      *parse({"--model", "/m", "--device", device.c_str(), "--ipc", "legacy", "--slab-size", "4M"}));
  EXPECT_EQ(cuda.device_uuid, kUuid);
  EXPECT_EQ(cuda.device(), kUuid);
  EXPECT_EQ(cuda.ipc, DeviceIpc::legacy);
  EXPECT_EQ(cuda.slab_nbytes, std::uint64_t{4} << 20);
  for (const char* word :
       {"cuda:", "cuda:0", "cuda:GPU-0123", "GPU-01234567-89ab-cdef-0123-456789abcdef",
        "cuda:GPU-01234567-89ab-cdef-0123-456789abcdeg", "cuda:GPU-01234567-89ab-cdef-0123/456789abcdef",
        "cuda:CPU-01234567-89ab-cdef-0123-456789abcdef"}) {
    const auto refused = parse({"--model", "/m", "--device", word});
    ASSERT_FALSE(refused) << word;
    EXPECT_EQ(refused.error().key, "--device");
  }
}

TEST(DaemonOptions, RefusesTheRest) {
  for (const std::vector<const char*>& words :
       std::vector<std::vector<const char*>>{{},
                                             {"--model", ""},
                                             {"--model", "/m", "--role", "draft1"},
                                             {"--model", "/m", "--rank", "-1"},
                                             {"--model", "/m", "--device", "cuda"},
                                             {"--model", "/m", "--ipc", "fabric"},
                                             {"--model", "/m", "--ipc", "vmm"},
                                             {"--model", "/m", "--device", "host", "--ipc", "legacy"},
                                             {"--model", "/m", "--slab-size", "0"},
                                             {"--model", "/m", "--memory-limit", "much"},
                                             {"--model", "/m", "--log-level", "loud"},
                                             {"--model", "/m", "surplus"},
                                             {"--model", "/m", "--unknown"}}) {
    const auto parsed = parse(words);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().reason, Reason::invalid);
    EXPECT_FALSE(parsed.error().message.empty());
  }
}

TEST(DaemonOptions, HelpAndVersionAreTexts) {
  EXPECT_NE(std::get<HelpText>(*parse({"--help"})).text.find("--memory-limit"), std::string::npos);
  EXPECT_EQ(std::get<HelpText>(*parse({"--version"})).text.rfind("wcached ", 0), 0u);
}

TEST(DaemonOptions, DevicesNeedNoModel) {
  EXPECT_TRUE(std::holds_alternative<ListDevices>(*parse({"--devices"})));
}

}  // namespace
}  // namespace wcache
