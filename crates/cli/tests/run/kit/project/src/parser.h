int evaluate(const char *text, double *result);
