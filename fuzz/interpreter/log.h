/* The log: one line for each operation, with what it returned. A line that differs
 * between two runs of a program is a difference in behaviour, so a line holds nothing
 * that may differ by right: no addresses, no process numbers, no times. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096l
#define UNUSED __attribute__((unused))
#define OPERATION __attribute__((unused, noinline)) static void

/* Where the log goes; never 0 to 2, which operations may replace. */
#define LOG_FD 90

/* The place of this thread of execution among all of the program: "0", its second
 * child "0.2", the child's first thread "0.2.1". */
static __thread char log_path[64] = "0";
static __thread int log_children;
static __thread char log_line[1 << 15];
static __thread size_t log_length;

UNUSED static void result(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = sizeof log_line - log_length - 2;
    int n = vsnprintf(log_line + log_length, room, format, arguments);
    va_end(arguments);
    log_length += n < 0 ? 0 : (size_t)n >= room ? room - 1 : (size_t)n;
}

UNUSED static void begin_operation(const char *text)
{
    log_length = 0;
    result("%s %s =", log_path, text);
}

UNUSED static void end_operation(void)
{
    log_line[log_length++] = '\n';
    if (write(LOG_FD, log_line, log_length) < 0)
        _exit(3);
    log_length = 0;
}

/* A line of its own, from any thread, that no right run has. */
UNUSED static void wrong(const char *format, ...)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s WRONG ", log_path);
    va_list arguments;
    va_start(arguments, format);
    n += vsnprintf(text + n, sizeof text - n - 1, format, arguments);
    va_end(arguments);
    text[n++] = '\n';
    if (write(LOG_FD, text, n) < 0)
        _exit(3);
}

/* The result of a call that gives 0 or more, or sets errno. */
UNUSED static void result_of(long value)
{
    if (value >= 0)
        result(" %ld", value);
    else
        result(" %s", strerrorname_np(errno));
}
