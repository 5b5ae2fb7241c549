/* The functions that take any number of arguments, which Rust cannot define. They only
 * collect the arguments into an array; what they do is in exec.rs. */
#include <stdarg.h>
#include <stddef.h>

extern int selfpage_execve(const char *path, char *const argv[], char *const envp[]);
extern int selfpage_execvpe(const char *file, char *const argv[], char *const envp[]);
extern char **environ;

/* Counts the arguments, and takes them into an array on the stack. */
#define COLLECT(argv, first, last)                                   \
    size_t count = 1;                                                \
    va_list ap;                                                      \
    va_start(ap, last);                                              \
    if (first) while (va_arg(ap, char *)) count++;                   \
    va_end(ap);                                                      \
    char *argv[count + 1];                                           \
    argv[0] = (char *)first;                                         \
    va_start(ap, last);                                              \
    for (size_t i = 1; first && i <= count; i++) argv[i] = va_arg(ap, char *)

int selfpage_v_execl(const char *path, const char *arg, ...) {
    COLLECT(argv, arg, arg);
    va_end(ap);
    return selfpage_execve(path, argv, environ);
}

int selfpage_v_execlp(const char *file, const char *arg, ...) {
    COLLECT(argv, arg, arg);
    va_end(ap);
    return selfpage_execvpe(file, argv, environ);
}

int selfpage_v_execle(const char *path, const char *arg, ...) {
    COLLECT(argv, arg, arg);
    char *const *envp = va_arg(ap, char *const *);
    va_end(ap);
    return selfpage_execve(path, argv, envp);
}
