#include "draftroute/families.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "draftroute/model_config.h"

namespace wcache::draftroute {
namespace {

using nlohmann::json;

struct Row {
  const char* config;
  const char* draft_type;
  const char* architecture;
  int layers;  // -1: unknown
};

// One row for each line of vLLM 0.32's table of rewritten configs.
constexpr Row kRows[] = {
    {R"({"model_type":"deepseek_v3","num_nextn_predict_layers":1})", "deepseek_mtp", "DeepSeekMTPModel", 1},
    {R"({"model_type":"deepseek_v32","num_nextn_predict_layers":1})", "deepseek_mtp", "DeepseekV32MTPModel",
     1},
    {R"({"model_type":"glm_moe_dsa","num_nextn_predict_layers":2})", "deepseek_mtp", "DeepseekV32MTPModel",
     2},
    {R"({"model_type":"deepseek_v4","num_nextn_predict_layers":1})", "deepseek_mtp", "DeepSeekV4MTPModel", 1},
    {R"({"model_type":"glm5_next","num_nextn_predict_layers":1})", "glm5_next_mtp", "Glm5NextMTPModel", 1},
    {R"({"model_type":"pangu_ultra_moe","num_nextn_predict_layers":1})", "pangu_ultra_moe_mtp",
     "OpenPanguMTPModel", 1},
    {R"({"model_type":"kimi_k3","text_config":{"num_nextn_predict_layers":0}})", "kimi_k3_mtp",
     "KimiK3MTPModel", 0},
    {R"({"architectures":["MiMoForCausalLM"],"num_nextn_predict_layers":1})", "mimo_mtp", "MiMoMTPModel", 1},
    {R"({"architectures":["MiMoV2ForCausalLM"]})", "mimo_v2_mtp", "MiMoV2MTPModel", 1},
    {R"({"architectures":["MiMoV2FlashForCausalLM"]})", "mimo_v2_mtp", "MiMoV2MTPModel", 1},
    {R"({"architectures":["MiMoV2OmniForCausalLM"]})", "mimo_v2_mtp", "MiMoV2OmniMTPModel", 1},
    {R"({"architectures":["Glm4MoeForCausalLM"],"num_nextn_predict_layers":1})", "glm4_moe_mtp",
     "Glm4MoeMTPModel", 1},
    {R"({"architectures":["Glm4MoeLiteForCausalLM"],"num_nextn_predict_layers":1})", "glm4_moe_lite_mtp",
     "Glm4MoeLiteMTPModel", 1},
    {R"({"architectures":["GlmOcrForConditionalGeneration"],"text_config":{"num_nextn_predict_layers":1}})",
     "glm_ocr_mtp", "GlmOcrMTPModel", 1},
    {R"({"model_type":"ernie4_5_moe","num_nextn_predict_layers":1})", "ernie_mtp", "ErnieMTPModel", 1},
    {R"({"model_type":"nemotron_h","num_nextn_predict_layers":1})", "nemotron_h_mtp", "NemotronHMTPModel", 1},
    {R"({"model_type":"nemotron_h"})", nullptr, nullptr, -1},
    {R"({"architectures":["NemotronH_Omni_Reasoning_V3"],"text_config":{"num_nextn_predict_layers":1}})",
     "nemotron_h_mtp", "NemotronHMTPModel", 1},
    {R"({"model_type":"qwen3_next"})", "qwen3_next_mtp", "Qwen3NextMTP", -1},
    {R"({"model_type":"qwen3_5","mtp_num_hidden_layers":1})", "qwen3_5_mtp", "Qwen3_5MTP", 1},
    {R"({"model_type":"qwen3_5_text","text_config":{"mtp_num_hidden_layers":2}})", "qwen3_5_mtp",
     "Qwen3_5MTP", 2},
    {R"({"model_type":"qwen3_5_moe","mtp_num_hidden_layers":1})", "qwen3_5_mtp", "Qwen3_5MoeMTP", 1},
    {R"({"model_type":"intern_s2_preview","text_config":{"mtp_num_hidden_layers":1}})", "qwen3_5_mtp",
     "Qwen3_5MTP", 1},
    {R"({"model_type":"interns2_mobius","text_config":{"mtp_num_hidden_layers":1}})", "qwen3_5_mtp",
     "InternS2MobiusMTP", 1},
    {R"({"model_type":"qwen4_exp","text_config":{"mtp_num_hidden_layers":3,"num_nextn_predict_layers":1}})",
     "qwen4_exp_mtp", "Qwen4ExpMTP", 3},
    {R"({"model_type":"qwen4_exp_text","text_config":{"num_nextn_predict_layers":1}})", "qwen4_exp_mtp",
     "Qwen4ExpMTP", 1},
    {R"({"architectures":["BailingMoeV3ForCausalLM"],"num_nextn_predict_layers":1})", "bailing_hybrid_v3_mtp",
     "BailingMoeV3MTPModel", 1},
    {R"({"model_type":"bailing_hybrid","num_nextn_predict_layers":1})", "bailing_hybrid_mtp",
     "BailingMoeV25MTPModel", 1},
    {R"({"architectures":["BailingMoeV2_5ForCausalLM"],"num_nextn_predict_layers":1})", "bailing_hybrid_mtp",
     "BailingMoeV25MTPModel", 1},
    {R"({"model_type":"exaone_moe","num_nextn_predict_layers":1})", "exaone_moe_mtp", "ExaoneMoeMTP", 1},
    {R"({"model_type":"lg_exaone4_5_vl","num_nextn_predict_layers":1})", "exaone4_5_mtp", "Exaone4_5_MTP", 1},
    {R"({"model_type":"longcat_flash"})", "longcat_flash_mtp", "LongCatFlashMTPModel", 1},
    {R"({"model_type":"longcat_flash_ngram","num_nextn_predict_layers":2})", "longcat_flash_mtp",
     "LongCatFlashMTPModel", 2},
    {R"({"model_type":"step3p5"})", "step3p5_mtp", "Step3p5MTP", 1},
    {R"({"architectures":["Step3p7ForConditionalGeneration"],"text_config":{"num_nextn_predict_layers":3}})",
     "step3p5_mtp", "Step3p5MTP", 3},
    {R"({"model_type":"hy_v3","num_nextn_predict_layers":1})", "hy_v3_mtp", "HYV3MTPModel", 1},
    {R"({"model_type":"hy_v4","num_nextn_predict_layers":1})", "hy_v4_mtp", "HYV4MTPModel", 1},
    {R"({"model_type":"dots3_note"})", "dots3_note_mtp", "Dots3NoteMTPModel", 1},
    {R"({"model_type":"inkling_mm_model","mtp_config":{"num_nextn_predict_layers":8}})", "inkling_mtp",
     "InklingMTPModel", 8},
    {R"({"model_type":"minimax_m3_vl"})", "minimax_m3_mtp", "MiniMaxM3MTP", 1},
    {R"({"architectures":["MiniMaxM3SparseForConditionalGeneration"],"num_mtp_modules":2})", "minimax_m3_mtp",
     "MiniMaxM3MTP", 2},
    {R"({"model_type":"minimax_m3_mtp","num_mtp_modules":2})", "minimax_m3_mtp", "MiniMaxM3MTP", 2},
    {R"({"model_type":"gemma4_assistant"})", "gemma4_mtp", "Gemma4MTPModel", 1},
    {R"({"model_type":"gemma4_unified_assistant"})", "gemma4_mtp", "Gemma4MTPModel", 1},
    {R"({"model_type":"llama","architectures":["LlamaForCausalLM"]})", nullptr, nullptr, -1},
    {R"({"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],"num_nextn_predict_layers":1})", nullptr,
     nullptr, -1},
};

TEST(Families, EveryRowOfTheTableIsRecognised) {
  for (const Row& row : kRows) {
    const DraftView view = draft_view(ModelConfig(json::parse(row.config)));
    if (row.draft_type == nullptr) {
      EXPECT_EQ(view.family, nullptr) << row.config;
      continue;
    }
    ASSERT_NE(view.family, nullptr) << row.config;
    EXPECT_EQ(view.model_type, row.draft_type) << row.config;
    EXPECT_EQ(view.architecture, row.architecture) << row.config;
    EXPECT_EQ(view.layers ? static_cast<int>(*view.layers) : -1, row.layers) << row.config;
  }
}

TEST(Families, EveryDeprecatedAliasMeansMtp) {
  for (const char* alias : {"deepseek_mtp",      "dots3_note_mtp",     "mimo_mtp",
                            "mimo_v2_mtp",       "glm4_moe_mtp",       "glm4_moe_lite_mtp",
                            "glm_ocr_mtp",       "glm5_next_mtp",      "ernie_mtp",
                            "nemotron_h_mtp",    "exaone_moe_mtp",     "exaone4_5_mtp",
                            "qwen3_next_mtp",    "qwen3_5_mtp",        "qwen4_exp_mtp",
                            "longcat_flash_mtp", "bailing_hybrid_mtp", "bailing_hybrid_v3_mtp",
                            "minimax_m3_mtp",    "kimi_k3_mtp",        "pangu_ultra_moe_mtp",
                            "step3p5_mtp",       "hy_v3_mtp",          "hy_v4_mtp",
                            "gemma4_mtp",        "inkling_mtp"})
    EXPECT_TRUE(is_mtp_alias(alias)) << alias;
  for (const char* word : {"mtp", "MTP", "eagle", "", "foo_mtp"}) EXPECT_FALSE(is_mtp_alias(word)) << word;
}

}  // namespace
}  // namespace wcache::draftroute
