# A configure script by autoconf, in the directory `configured`.
mkdir configured && cd configured || exit 1
cat > configure.ac << 'END'
AC_INIT([generated], [1])
AC_CONFIG_HEADERS([config.h])
AC_PROG_CC
AC_CHECK_HEADERS([fcntl.h limits.h locale.h sys/file.h sys/ioctl.h sys/param.h sys/socket.h sys/time.h termios.h])
AC_C_BIGENDIAN
AC_CHECK_SIZEOF([long])
AC_TYPE_OFF_T
AC_TYPE_PID_T
AC_TYPE_SIZE_T
AC_CHECK_FUNCS([dup2 fchdir fork ftruncate getcwd gethostname gettimeofday memmove memset mkdir munmap poll putenv])
AC_CHECK_FUNCS([realpath rmdir select setenv setlocale socket strcasecmp strchr strdup strerror strrchr strstr strtol])
AC_OUTPUT
END
echo '#undef NOTHING' > config.h.in
autoconf
