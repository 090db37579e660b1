#include "draftroute/decision.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace wcache::draftroute {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json load(const std::string& name) {
  std::ifstream in(std::string(WCACHE_TEST_DATA) + "/vllm/" + name);
  return json::parse(in);
}

/// A directory of its own holding the config.json of every model that vLLM decided about; the working
/// directory while it lives, because vLLM was given relative paths and looks at their text.
class VllmModels : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "wcache-route-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    before_ = fs::current_path();
    fs::current_path(root_);
    const json configs = load("configs.json");
    for (const auto& [name, config] : configs.items()) {
      fs::create_directories(name);
      if (!config.is_null()) std::ofstream(name + "/config.json") << config;
    }
  }
  void TearDown() override {
    fs::current_path(before_);
    fs::remove_all(root_);
  }

  void write_config(const std::string& name, const json& config) {
    fs::create_directories(name);
    std::ofstream(name + "/config.json") << config;
  }

  Result<Decision> decide_for(const std::string& target, const json& spec, std::uint32_t tp = 1) {
    RouteRequest request;
    request.target = target;
    if (!spec.is_null()) request.speculative = spec.dump();
    request.tp_size = tp;
    return decide(request);
  }

 private:
  fs::path root_, before_;
};

void expect_difference(const std::string& name, const json& row, const Result<Decision>& ours) {
  if (row.contains("error")) {
    ASSERT_FALSE(ours) << name;
    EXPECT_EQ(ours.error().key, row["error"]) << name << ": " << ours.error().message;
    return;
  }
  ASSERT_TRUE(ours) << name << ": " << ours.error().message;
  EXPECT_EQ(to_string(ours->kind), row["decision"].get<std::string>()) << name << ": " << ours->reason;
}

void expect_agreement(const json& row, const Result<Decision>& ours) {
  const std::string name = row["name"];
  const json& vllm = row["vllm"];
  if (!vllm["ok"].get<bool>() && vllm["stage"] == "speculative_config") {
    ASSERT_FALSE(ours) << name << " is refused by vLLM: " << vllm["error"];
    EXPECT_EQ(ours.error().reason, Reason::invalid) << name;
    EXPECT_FALSE(ours.error().key.empty()) << name << ": " << ours.error().message;
    return;
  }
  ASSERT_TRUE(ours) << name << ": " << ours.error().message;
  if (!vllm["ok"].get<bool>()) return;  // refused later, for reasons that are the engine's
  EXPECT_EQ(ours->method, vllm["method"].get<std::string>()) << name;
  EXPECT_EQ(ours->model, vllm["spec_model"].get<std::string>()) << name;
  EXPECT_EQ(ours->tp_size, vllm["draft_tp"].get<std::uint32_t>()) << name;
  if (ours->method == "mtp") {
    EXPECT_EQ(ours->architecture, vllm["draft_archs"][0].get<std::string>()) << name;
  }
  std::string expected = "disk";
  if (!vllm["loads_draft_model"].get<bool>()) expected = "none";
  if (vllm["weight_cacheable"].get<bool>() && vllm["method"] == "mtp") expected = "cache";
  if (row["spec"].is_object() && row["spec"].contains("draft_load_config")) expected = "explicit";
  EXPECT_EQ(to_string(ours->kind), expected) << name << ": " << ours->reason;
}

TEST_F(VllmModels, EveryRecordedDecisionIsVllmsOrADocumentedDifference) {
  const json differences = load("differences.json");
  std::ifstream in(std::string(WCACHE_TEST_DATA) + "/vllm/decisions.jsonl");
  std::size_t cases = 0;
  std::size_t documented = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    const json row = json::parse(line);
    const Result<Decision> ours = decide_for(row["target"], row["spec"], row["tp"]);
    if (const auto found = differences.find(row["name"].get<std::string>()); found != differences.end()) {
      ++documented;
      expect_difference(row["name"], *found, ours);
    } else {
      expect_agreement(row, ours);
    }
    EXPECT_FALSE(ours && ours->reason.empty()) << row["name"];
  }
  EXPECT_EQ(cases, 64u);
  EXPECT_EQ(documented, differences.size()) << "a documented difference names no case";
}

TEST_F(VllmModels, ErrorsNameTheKeyAtFault) {
  const struct {
    json spec;
    std::uint32_t tp;
    std::string key;
  } cases[] = {
      {{{"method", "MTP"}, {"num_speculative_tokens", 1}}, 1, "method"},
      {{{"method", "warp_drive"}, {"num_speculative_tokens", 1}}, 1, "method"},
      {{{"method", "mtp"}, {"foo", 1}, {"num_speculative_tokens", 1}}, 1, "foo"},
      {{{"method", "mtp"}, {"tensor_parallel_size", 1}, {"num_speculative_tokens", 1}},
       1,
       "tensor_parallel_size"},
      {{{"method", "mtp"}, {"draft_tensor_parallel_size", 2}, {"num_speculative_tokens", 1}},
       1,
       "draft_tensor_parallel_size"},
      {{{"method", "mtp"}, {"draft_tensor_parallel_size", 0}, {"num_speculative_tokens", 1}},
       1,
       "draft_tensor_parallel_size"},
      {{{"method", "mtp"}, {"num_speculative_tokens", 0}}, 1, "num_speculative_tokens"},
      {{{"method", "mtp"}, {"num_speculative_tokens", "many"}}, 1, "num_speculative_tokens"},
      {{{"method", "mtp"}}, 1, "num_speculative_tokens"},
      {{{"method", "eagle"}, {"num_speculative_tokens", 1}}, 1, "model"},
      {{{"num_speculative_tokens", 1}}, 1, "model"},
      {{{"method", "custom_class"}, {"num_speculative_tokens", 1}}, 1, "model"},
      {{{"method", "mtp"}, {"model", 3}, {"num_speculative_tokens", 1}}, 1, "model"},
      {{{"method", "mtp"}, {"model", "models/nonexistent"}, {"num_speculative_tokens", 1}}, 1, "model"},
      {{{"method", "mtp"}, {"num_speculative_tokens", 1}, {"draft_load_config", "ipc_cache"}},
       1,
       "draft_load_config"},
      {{{"method", "mtp"},
        {"num_speculative_tokens", 1},
        {"draft_load_config", {{"load_format", "ipc_cache"}}}},
       1,
       "draft_load_config"},
  };
  for (const auto& c : cases) {
    const Result<Decision> ours = decide_for("models/c-mimo", c.spec, c.tp);
    ASSERT_FALSE(ours) << c.spec;
    EXPECT_EQ(ours.error().reason, Reason::invalid) << c.spec;
    EXPECT_EQ(ours.error().key, c.key) << c.spec << ": " << ours.error().message;
  }
}

TEST_F(VllmModels, AnExplicitLoadConfigIsUsedAsGiven) {
  const json spec = {{"method", "mtp"},
                     {"num_speculative_tokens", 1},
                     {"draft_load_config",
                      {{"load_format", "ipc_cache"}, {"model_loader_extra_config", {{"is_draft", true}}}}}};
  const Result<Decision> ours = decide_for("models/c-mimo", spec);
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->kind, DecisionKind::as_given);
  EXPECT_EQ(ours->load_format, "ipc_cache");
}

TEST_F(VllmModels, EveryMethodWithWeightsButMtpGoesToDiskUnlessAdmitted) {
  const struct {
    std::string method, model;
  } drafts[] = {{"eagle", "models/c-eagle-llama"},       {"eagle3", "models/c-ea3"},
                {"dflash", "models/c-df-lash"},          {"dspark", "models/c-ds-park"},
                {"draft_model", "models/c-qwen3-small"}, {"medusa", "models/c-medusa"},
                {"mlp_speculator", "models/c-mlpspec"}};
  for (const auto& draft : drafts) {
    RouteRequest request;
    request.target = "models/c-llama";
    request.speculative =
        json{{"method", draft.method}, {"model", draft.model}, {"num_speculative_tokens", 3}}.dump();
    Result<Decision> ours = decide(request);
    ASSERT_TRUE(ours) << draft.method << ": " << ours.error().message;
    EXPECT_EQ(ours->kind, DecisionKind::disk) << draft.method;
    EXPECT_EQ(ours->method, draft.method);
    EXPECT_EQ(ours->load_format, "auto");
    EXPECT_NE(ours->reason.find("--draft-methods"), std::string::npos) << ours->reason;

    request.draft_methods = {"mtp", draft.method};
    ours = decide(request);
    ASSERT_TRUE(ours) << draft.method;
    EXPECT_EQ(ours->kind, DecisionKind::cache) << draft.method << ": " << ours->reason;
  }
}

TEST_F(VllmModels, MethodsWithoutWeightsNeedNoGroup) {
  for (const char* method : {"ngram", "ngram_gpu", "suffix", "extract_hidden_states"}) {
    const Result<Decision> ours =
        decide_for("models/c-qwen3", {{"method", method}, {"num_speculative_tokens", 2}});
    ASSERT_TRUE(ours) << method << ": " << ours.error().message;
    EXPECT_EQ(ours->kind, DecisionKind::none) << method;
    EXPECT_EQ(ours->model, method);
  }
  const Result<Decision> custom =
      decide_for("models/c-qwen3", {{"model", "my_package.Proposer"}, {"num_speculative_tokens", 2}});
  ASSERT_TRUE(custom);
  EXPECT_EQ(custom->method, "custom_class");
  EXPECT_EQ(custom->kind, DecisionKind::none);
}

TEST_F(VllmModels, DeepseekV41RefusesMtp) {
  write_config("models/v41",
               {{"model_type", "deepseek_v41"}, {"num_nextn_predict_layers", 1}, {"num_hidden_layers", 2}});
  const Result<Decision> ours = decide_for("models/v41", {{"method", "mtp"}, {"num_speculative_tokens", 1}});
  ASSERT_FALSE(ours);
  EXPECT_EQ(ours.error().key, "method");
}

json random_value(std::mt19937& random, int depth) {
  switch (random() % (depth > 0 ? 9 : 7)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<std::int64_t>(random() % 7) - 1;
    case 3:
      return static_cast<double>(random()) / 7.0;
    case 4:
      return std::numeric_limits<std::uint64_t>::max();
    case 5:
      return "";
    case 6: {
      constexpr const char* kWords[] = {"mtp", "models/c-mimo", "ngram",        "a.b",
                                        "1",   "eagle3",        "models/c-ea3", "\xc3\xa9"};
      return kWords[random() % std::size(kWords)];
    }
    case 7:
      return json::array({random_value(random, depth - 1)});
    default:
      return json{{"load_format", random_value(random, depth - 1)}};
  }
}

TEST_F(VllmModels, RandomObjectsAlwaysEndInOneOfTheFive) {
  constexpr const char* kKeys[] = {"method",
                                   "model",
                                   "num_speculative_tokens",
                                   "draft_tensor_parallel_size",
                                   "tensor_parallel_size",
                                   "draft_load_config",
                                   "quantization",
                                   "max_model_len",
                                   "x"};
  std::mt19937 random(7);
  std::array<int, 5> seen{};
  for (int round = 0; round < 20000; ++round) {
    json spec = json::object();
    if (round % 2 == 0) spec = {{"method", "mtp"}, {"num_speculative_tokens", 1}};
    for (std::uint32_t n = random() % 5; n > 0; --n) {
      const std::uint32_t key = static_cast<std::uint32_t>(random() % 12);
      spec[kKeys[key < std::size(kKeys) ? key : key % 3]] = random_value(random, 2);
    }
    const Result<Decision> ours = decide_for("models/c-mimo", spec, 1 + random() % 2);
    if (!ours) {
      EXPECT_EQ(ours.error().reason, Reason::invalid) << spec;
      EXPECT_FALSE(ours.error().key.empty()) << spec;
      ++seen[4];
    } else {
      EXPECT_FALSE(ours->reason.empty());
      ++seen[static_cast<std::size_t>(ours->kind)];
    }
  }
  for (int count : seen) EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace wcache::draftroute
