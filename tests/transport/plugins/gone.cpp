// A library that a plugin needs, and that is not found at run time.
extern "C" int weir_gone();
extern "C" int weir_gone() { return 1; }
