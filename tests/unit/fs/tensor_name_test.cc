#include "fs/tensor_name.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

using namespace std::string_literals;

namespace wcache {
namespace {

TEST(TensorName, EscapesWhatAFileNameCannotHold) {
  for (const auto& [name, file] : {
           std::pair{"model.layers.0.weight"s, "model.layers.0.weight"s},
           std::pair{"a/b"s, "a%2Fb"s},
           std::pair{"50%"s, "50%25"s},
           std::pair{"a\0b"s, "a%00b"s},
           std::pair{"."s, "%2E"s},
           std::pair{".."s, "%2E%2E"s},
           std::pair{"..."s, "..."s},
           std::pair{"./."s, ".%2F."s},
           std::pair{"%2F"s, "%252F"s},
           std::pair{"\xC3\xA9 \n"s, "\xC3\xA9 \n"s},
       }) {
    EXPECT_EQ(escape_tensor_name(name), file);
    EXPECT_EQ(unescape_tensor_name(file), name);
  }
}

TEST(TensorName, LimitsTheEscapedLength) {
  EXPECT_EQ(escape_tensor_name(""), std::nullopt);
  EXPECT_TRUE(escape_tensor_name(std::string(255, 'x')));
  EXPECT_FALSE(escape_tensor_name(std::string(256, 'x')));
  EXPECT_TRUE(escape_tensor_name(std::string(85, '/')));
  EXPECT_FALSE(escape_tensor_name(std::string(86, '/')));
}

TEST(TensorName, OnlyCanonicalFileNamesHaveATensor) {
  for (const char* file : {"", ".", "..", "%", "%2", "%2f", "%41", "a%2E", "%2E%2E%2E", "50%", "%2E."})
    EXPECT_EQ(unescape_tensor_name(file), std::nullopt) << file;
}

}  // namespace
}  // namespace wcache
