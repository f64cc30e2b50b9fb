#include "weir/app/main.hpp"

int main(int argc, char** argv) { return weir::app::main(argc, argv, weir::builtin_environments()); }
