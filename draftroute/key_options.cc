#include "draftroute/key_options.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "core/format.h"

namespace wcache::draftroute {
namespace {

constexpr std::uint32_t kMostRanks = 4096;

Result<std::uint32_t> tensor_parallel_size(const std::string& text) {
  std::uint32_t value = 1;
  if (text.empty()) return value;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc() && end == text.data() + text.size() && value >= 1 && value <= kMostRanks)
    return value;
  return fail(Reason::invalid, "'" + printable(text) + "' is no tensor parallel size",
              "give a number from 1 to 4096", "--tensor-parallel-size");
}

/// Words between commas. Empty words are dropped, so that "" is an empty list.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) words.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

Result<std::vector<std::string>> draft_methods(const std::string& text) {
  std::vector<std::string> words = split(text);
  for (const std::string& word : words)
    if (!loads_draft_weights(word))
      return fail(Reason::invalid, "'" + printable(word) + "' is no method whose draft could be cached",
                  "methods are mtp, eagle, eagle3, dflash, dspark, draft_model, medusa and mlp_speculator",
                  "--draft-methods");
  return words;
}

}  // namespace

void KeyOptions::add_to(CLI::App& app) {
  app.add_option("--tensor-parallel-size", tp_size_,
                 "Ranks that share the model, on all nodes together. Default: 1.")
      ->type_name("N");
  app.add_option(
         "--speculative-config", speculative_,
         "The engine's speculative config, a JSON object: its draft gets a group of its own where it can be "
         "cached.")
      ->type_name("JSON");
  app.add_option("--draft-methods", methods_,
                 "Methods whose drafts are cached, with commas between them. Default: mtp.")
      ->type_name("LIST");
  app.add_option("--draft-shared", shared_,
                 "Whether an MTP draft's image holds the embedding and head that it takes from the target: "
                 "include or "
                 "omit. Default: include.")
      ->type_name("WORD");
}

Result<RouteRequest> KeyOptions::request(std::string model) const {
  RouteRequest request;
  request.target = std::move(model);
  const Result<std::uint32_t> tp_size = tensor_parallel_size(tp_size_);
  if (!tp_size) return fail(tp_size.error());
  request.tp_size = *tp_size;
  if (!speculative_.empty()) request.speculative = speculative_;
  if (!methods_.empty()) {
    Result<std::vector<std::string>> methods = draft_methods(methods_);
    if (!methods) return fail(methods.error());
    request.draft_methods = std::move(*methods);
  }
  if (shared_ == "omit")
    request.shared = SharedTensors::omit;
  else if (!shared_.empty() && shared_ != "include")
    return fail(Reason::invalid, "'" + printable(shared_) + "' is neither include nor omit", {},
                "--draft-shared");
  return request;
}

std::vector<std::string> KeyOptions::arguments(const RouteRequest& request) {
  std::vector<std::string> words;
  const auto add = [&](const char* option, std::string value) {
    words.emplace_back(option);
    words.push_back(std::move(value));
  };
  if (request.tp_size != 1) add("--tensor-parallel-size", std::to_string(request.tp_size));
  if (request.speculative) add("--speculative-config", *request.speculative);
  std::string methods;
  for (const std::string& method : request.draft_methods) methods += (methods.empty() ? "" : ",") + method;
  if (methods != "mtp") add("--draft-methods", methods.empty() ? "," : methods);
  if (request.shared == SharedTensors::omit) add("--draft-shared", "omit");
  return words;
}

}  // namespace wcache::draftroute
