// The whole program with environments of one's own (none here): links every library, libtorch with them.
#include "weir/app/main.hpp"

int main() {
  char program[] = "all_parts", flag[] = "--version";
  char* arguments[] = {program, flag, nullptr};
  return weir::app::main(2, arguments, {});
}
