double *variable(const char *name);
