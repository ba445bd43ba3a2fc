/* A library of more than 2 MiB (-DLIBRARY), and a program that needs it. */
#ifdef LIBRARY
const char large[3 << 20] = {1};
int first(void) { return large[0]; }
#else
int first(void);
int main(void) { return first() != 1; }
#endif
