// What an error message says.
#ifndef TESSERA_TESTS_MESSAGES_H_
#define TESSERA_TESTS_MESSAGES_H_

#include <cctype>
#include <string>

namespace tessera::test {

// Whether `word` stands in the message as a word of its own: "v" is not named by "have".
inline bool names(const std::string& message, const std::string& word) {
  const auto in_word = [&](size_t i) {
    return i < message.size() && (std::isalnum(static_cast<unsigned char>(message[i])) != 0 || message[i] == '_');
  };
  for (size_t at = message.find(word); at != std::string::npos; at = message.find(word, at + 1)) {
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + word.size())) return true;
  }
  return false;
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_MESSAGES_H_
