// Puts the program into a locale that writes 1,5 for 1.5, while in scope.
#pragma once

#include <clocale>
#include <locale>
#include <string>

class LocaleWithComma {
 public:
  LocaleWithComma() : c_(std::setlocale(LC_ALL, nullptr)), cpp_(std::locale()) {
    // The C library's locale where one is installed, that of C++ streams anyway.
    for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "nl_NL.UTF-8", "ru_RU.UTF-8"})
      if (std::setlocale(LC_ALL, name)) {
        in_c_ = true;
        break;
      }
    std::locale::global(std::locale(std::locale::classic(), new Comma));
  }
  ~LocaleWithComma() {
    std::locale::global(cpp_);
    std::setlocale(LC_ALL, c_.c_str());
  }

  /// Whether the C library's functions are in it too.
  bool in_c() const { return in_c_; }

 private:
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  std::string c_;
  std::locale cpp_;
  bool in_c_ = false;
};
